"""The whole loop on real parts: tasks → harness → proxy → Kafka → assembler → learner → policy → engine → rollouts.

The model is the tiny random one. Its reward is the share of lower-case letters in its reply, which differs within every
group, so each group can be trained.
"""

import json
from pathlib import Path

import pytest

from tests.support.log_reader import Log, checkpoint_faults, faults, full_prompts, ints
from tests.support.stack import running_stack

LETTERS = (
    'n=$(LC_ALL=C tr -cd a-z < "$ANSWER_FILE" | wc -c); t=$(wc -c < "$ANSWER_FILE"); '
    'awk -v n="$n" -v t="$t" \'BEGIN { printf "{\\"reward\\": %.4f}\\n", t ? n / t : 0 }\''
)
LEARNING = [
    "learner.lr=5e-3", "learner.groups_per_step=2", "learner.run_id=loop", "launcher.groups_in_flight=4",
    "learner.max_staleness=4",
]  # fmt: skip


def task(name: str, **changes: object) -> dict[str, object]:
    return {
        "task_id": name,
        "instruction": f"Write something. {name}",
        "verifier": {"kind": "command", "command": LETTERS},
        "group_size": 4,
        "sampling": {"temperature": 1.0, "max_tokens": 16},
        "limits": {"wall_s": 120},
    } | changes


def multi_turn(name: str) -> dict[str, object]:
    return task(name, harness={"name": "react", "options": {"max_turns": 3, "tools": ["bash", "submit"]}})


def options(*assignments: str) -> list[str]:
    return [part for text in (*LEARNING, *assignments) for part in ("--set", text)]


def all_finished(log: Log, rollouts: int) -> bool:
    return len(log.finished()) == rollouts == len(log.rows["trajectories"])


def newest_checkpoint(state: Path) -> dict[str, object]:
    folder = max((state / "runs" / "loop" / "checkpoints").glob("step-*"))
    return json.loads((folder / "state.json").read_text())


def assert_loop_closed(log: Log, state: Path, *, steps: int) -> None:
    assert faults(log) == []
    assert len(log.rows["steps"]) >= steps
    assert checkpoint_faults(log, newest_checkpoint(state)) == []
    assert_engine_and_trainer_agree(log)
    versions = {c["policy_version_max"] for c in log.values("completions") if c["status"] == "delivered"}
    assert len(versions) >= 2, f"no rollout carries a new version: {versions}"


def assert_engine_and_trainer_agree(log: Log) -> None:
    """On tokens of version 0 the engine and veRL's model hold the same weights: δ is rounding, nothing else."""
    first = log.values("steps")[0]["metrics"]
    assert first["staleness_max"] == 0
    assert first["delta_mean"] < 1e-4
    assert first["delta_max"] < 1e-3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_react_and_pi_train_through_the_whole_loop(tmp_path, model_folder):
    model = model_folder("tiny")
    with running_stack(tmp_path / "state", "--model", str(model), *options()) as stack:
        stack.produce([*(multi_turn(f"react-{i}") for i in range(8)), task("plain", evaluation=True)])
        stack.wait("react's rollouts", lambda log: all_finished(log, 36), timeout_s=240)
        pi = {"name": "pi", "options": {"tools": ["bash"]}}
        stack.produce([task(f"pi-{i}", group_size=2, harness=pi) for i in range(2)])
        log = stack.wait("pi's rollouts", lambda log: all_finished(log, 40), timeout_s=240)
        log = stack.wait("the steps", lambda log: len(log.rows["steps"]) >= 3, timeout_s=120)
        assert_loop_closed(log, tmp_path / "state", steps=3)
        assert {v["harness"] for v in log.finished().values()} == {"react", "pi"}
        assert {v["end_reason"] for v in log.finished().values()} == {"completed"}
        assert_turns_continue(log)
        assert all(not t["trainable"] and t["reason"] == "evaluation" for t in trajectories_of(log, "plain"))


def trajectories_of(log: Log, task_id: str) -> list[dict[str, object]]:
    found = [t for t in log.values("trajectories") if t["task_id"] == task_id]
    assert found
    return found


def assert_turns_continue(log: Log) -> None:
    """React's three turns are one chain, in which each prompt begins with the turn before it."""
    prompts = full_prompts(log)
    by_id = {c["completion_id"]: c for c in log.values("completions")}
    turns = [c for c in by_id.values() if "react-" in c["rollout_id"]]
    later = [c for c in turns if c["parent_id"]]
    assert len(later) >= len(turns) / 2
    for c in later:
        parent = by_id[c["parent_id"]]
        before = prompts[c["parent_id"]] + ints(parent["completion_token_ids"])
        assert prompts[c["completion_id"]][: len(before)] == before
        assert c["prompt_token_count"] > len(before)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_the_same_loop_on_vllm(tmp_path, model_folder):
    model = model_folder("tiny")
    with running_stack(tmp_path / "state", "--engine", "vllm", "--model", str(model), *options()) as stack:
        stack.produce([multi_turn(f"react-{i}") for i in range(8)])
        stack.wait("the rollouts", lambda log: all_finished(log, 32), timeout_s=300)
        log = stack.wait("the steps", lambda log: len(log.rows["steps"]) >= 2, timeout_s=120)
        assert_loop_closed(log, tmp_path / "state", steps=2)
        assert_turns_continue(log)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_service_killed_once_loses_and_doubles_nothing(tmp_path, model_folder):
    model = model_folder("tiny")
    with running_stack(tmp_path / "state", "--model", str(model), *options("launcher.retry_backoff_s=0.2")) as stack:
        stack.produce([multi_turn(f"react-{i}") for i in range(24)])
        for number, service in enumerate(["assembler", "proxy", "engine", "learner", "launcher", "archiver"], 1):
            stack.wait(f"progress before {service}", lambda log, n=number: len(log.finished()) >= 8 * n, timeout_s=300)
            stack.kill(service)
        stack.wait("progress before the broker", lambda log: len(log.finished()) >= 60, timeout_s=300)
        stack.kill_broker()
        log = stack.wait("the end", lambda log: all_finished(log, 96), timeout_s=400)
        log = stack.wait("the steps", lambda log: len(log.rows["steps"]) >= 6, timeout_s=200)
        assert_loop_closed(log, tmp_path / "state", steps=6)
