"""The launcher on the real broker: from a task to a finished rollout, and every way in which one can end."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ingest.bearer import Bearer
from ingest.kafka.partitions import partition_of
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from rollouts.errors import StateInUse
from rollouts.harnesses import PACKS
from rollouts.harnesses.base import Assignment, PackOptions, Result, Start
from rollouts.runtimes.base import Ended
from schemas import EndReason, Harness, Limits, RolloutEvent, RolloutEventKind, Task, TaskFile, Telemetry, Verifier
from schemas.ids import now_us
from schemas.topics import TELEMETRY
from tests.support.launchers import SECRET, exact_task, finished, launcher, processes_with, produce
from tests.support.standin_proxy import Reply, Script, standin_proxy

STEPS = [
    RolloutEventKind(name) for name in ("queued", "scheduled", "started", "harness_exited", "verified", "finished")
]


async def ends(kafka: KafkaSettings, state: Path, tasks: list[Task], script: Script, **settings: Any) -> dict[str, Any]:
    """Runs tasks of one rollout each to their ends: task id → finished event."""
    async with standin_proxy(kafka, SECRET, script) as proxy, launcher(kafka, state, proxy.url, **settings):
        await produce(kafka, tasks)
        events = await finished(kafka, tasks)
    return {told[-1].task_id: told[-1] for told in events.values()}


def say(text: str) -> Script:
    return lambda _bearer, _messages: Reply(text)


def call_then_say(command: str, text: str = "done") -> Callable[[Bearer, list[dict[str, Any]]], Reply]:
    """One call of `bash`, then an answer."""
    return lambda _bearer, messages: Reply(text) if messages[-1]["role"] == "tool" else Reply(bash=command)


def tool_task(task_id: str, **changes: Any) -> Task:
    return exact_task(task_id, "done", options={"tools": ["bash"], "max_turns": 2}, group_size=1, **changes)


async def test_tasks_become_finished_rollouts(kafka: KafkaSettings, tmp_path: Path) -> None:
    tasks = [exact_task("right", "yes"), exact_task("wrong", "no")]
    async with standin_proxy(kafka, SECRET, say("yes")) as proxy, launcher(kafka, tmp_path, proxy.url):
        await produce(kafka, tasks)
        events = await finished(kafka, tasks)
    assert len(events) == 4
    for told in events.values():
        assert [event.kind for event in told] == STEPS
        end = told[-1]
        assert end.end_reason is EndReason.COMPLETED
        assert end.reward == (1.0 if end.task_id == "right" else 0.0)
        assert (end.exit_code, end.attempt, end.completion_count, end.group_size) == (0, 1, 1, 2)
        assert end.completions_end_offset is not None
        assert_in_order(end)
    assert sorted(bearer.rollout_id for bearer, _body in proxy.requests) == sorted(events)
    assert {bearer.sampling for bearer, _body in proxy.requests} == {tasks[0].sampling}
    # the end offset covers the rollout's own completion: two rollouts may share a partition, so it is 1 or more
    assert sum(end_offsets(events).values()) == 4


def assert_in_order(end: RolloutEvent) -> None:
    timings = end.timings
    moments = [
        timings.queued_at_us, timings.scheduled_at_us, timings.started_at_us,
        timings.first_call_at_us, timings.exited_at_us, timings.verified_at_us,
    ]  # fmt: skip
    assert None not in moments
    assert moments == sorted(moment for moment in moments if moment is not None)


def end_offsets(events: dict[str, list[RolloutEvent]]) -> dict[int, int]:
    """The highest `completions_end_offset` of each partition."""
    found: dict[int, int] = {}
    for rollout_id, told in events.items():
        partition = partition_of(rollout_id, 4)
        found[partition] = max(found.get(partition, 0), told[-1].completions_end_offset or 0)
    return found


async def test_a_harness_works_in_its_own_workspace(kafka: KafkaSettings, tmp_path: Path) -> None:
    files = [TaskFile(path="in/a.txt", content=b"hello")]
    verifier = Verifier(kind="command", options=json.dumps({"command": 'test "$(cat out.txt)" = hello'}))
    task = tool_task("files", files=files, verifier=verifier)
    end = (await ends(kafka, tmp_path, [task], call_then_say("cat in/a.txt > out.txt")))["files"]
    assert (end.end_reason, end.reward, end.completion_count) == (EndReason.COMPLETED, 1.0, 2)


async def test_harnesses_that_misbehave_are_ended_and_classified(kafka: KafkaSettings, tmp_path: Path) -> None:
    commands = {
        "crashes": "kill -9 $PPID",
        "hangs": "sleep 300",
        "floods": "yes > /proc/$PPID/fd/1",
        "fills": "head -c 9000000 /dev/zero > big; sleep 300",
        "leaves": "setsid sleep 7654 & env -i /usr/bin/setsid /bin/sh -c '/bin/sleep 7655 & exit' ; sleep 0.2",
    }

    def script(bearer: Bearer, messages: list[dict[str, Any]]) -> Reply:
        return call_then_say(commands[bearer.rollout_id.split("-")[0]])(bearer, messages)

    tasks = [tool_task(name, limits=Limits(wall_s=4.0 if name == "hangs" else 60.0)) for name in commands]
    settings = {"output_limit_bytes": 100_000, "workspace_limit_bytes": 8_000_000}
    found = await ends(kafka, tmp_path, tasks, script, **settings)
    assert {name: (end.end_reason, end.message, end.reward) for name, end in found.items()} == {
        "crashes": (EndReason.HARNESS_ERROR, "killed by signal 9: left no result", None),
        "hangs": (EndReason.WALL_LIMIT, "ran longer than its wall limit", None),
        "floods": (EndReason.OUTPUT_LIMIT, "wrote more than the launcher allows", None),
        "fills": (EndReason.OUTPUT_LIMIT, "wrote more than the launcher allows", None),
        "leaves": (EndReason.COMPLETED, "", 1.0),
    }
    assert processes_with(str(tmp_path)) == []
    # one left its session, the other dropped its environment too
    assert [*processes_with("sleep\x007654"), *processes_with("sleep\x007655")] == []


class ShellPack:
    """A harness that is one shell command, and no agent at all."""

    version = "0"
    options = PackOptions

    def __init__(self, name: str, command: str) -> None:
        self.name = name
        self._command = command

    async def install(self, harnesses: Path) -> None:
        pass

    def start(self, assignment: Assignment, options: PackOptions) -> Start:
        return Start(("/bin/sh", "-c", self._command))

    def read(self, ended: Ended) -> Result:
        return Result(answer="")


async def test_harnesses_that_never_call_the_model(
    kafka: KafkaSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, command in {"mute": "exit 0", "sleepy": "sleep 300"}.items():
        monkeypatch.setitem(PACKS, name, ShellPack(name, command))  # pyright: ignore[reportArgumentType]
    tasks = [
        exact_task(name, "x", group_size=1, harness=Harness(name=name), limits=Limits(startup_s=1.0))
        for name in ("mute", "sleepy")
    ]
    found = await ends(kafka, tmp_path, tasks, say(""))
    assert {name: (end.end_reason, end.reward, end.completion_count) for name, end in found.items()} == {
        "mute": (EndReason.NO_CALLS, None, 0),
        "sleepy": (EndReason.STARTUP_LIMIT, None, 0),
    }


async def test_command_verifiers(kafka: KafkaSettings, tmp_path: Path) -> None:
    clean = "grep -q secret judge.txt && ! env | grep -q OPENAI && test ! -e ../home/agent"
    cases: dict[str, tuple[dict[str, Any], EndReason, float | None]] = {
        "passes": ({"command": "exit 0"}, EndReason.COMPLETED, 1.0),
        "fails": ({"command": "exit 1"}, EndReason.COMPLETED, 0.0),
        "breaks": ({"command": "exit 3"}, EndReason.VERIFIER_ERROR, None),
        "missing": ({"command": ["/no/such/program"]}, EndReason.VERIFIER_ERROR, None),
        "hangs": ({"command": "sleep 300", "timeout_s": 1.0}, EndReason.VERIFIER_TIMEOUT, None),
        "tells": ({"command": 'echo x; echo \'{"reward": 0.25, "rewards": {"a": 1}}\''}, EndReason.COMPLETED, 0.25),
        "clean": ({"command": clean, "files": {"judge.txt": "secret"}}, EndReason.COMPLETED, 1.0),
        "reads": ({"command": 'test "$(cat $ANSWER_FILE)" = yes'}, EndReason.COMPLETED, 1.0),
    }
    tasks = [
        exact_task(name, "", group_size=1, verifier=Verifier(kind="command", options=json.dumps(options)))
        for name, (options, _reason, _reward) in cases.items()
    ]
    found = await ends(kafka, tmp_path, tasks, say("yes"))
    assert {name: (end.end_reason, end.reward) for name, end in found.items()} == {
        name: (reason, reward) for name, (_options, reason, reward) in cases.items()
    }
    assert processes_with(str(tmp_path)) == []


async def test_reaching_a_limit_of_the_proxy_is_told_apart(kafka: KafkaSettings, tmp_path: Path) -> None:
    def script(bearer: Bearer, _messages: object) -> Reply:
        code = "call_limit" if bearer.rollout_id.startswith("calls") else "context_length_exceeded"
        return Reply(error_code=code)

    tasks = [exact_task("calls", "x", group_size=1), exact_task("context", "x", group_size=1)]
    found = await ends(kafka, tmp_path, tasks, script)
    assert {name: end.end_reason for name, end in found.items()} == {
        "calls": EndReason.CALL_LIMIT,
        "context": EndReason.CONTEXT_LENGTH,
    }


async def test_a_platform_that_fails_is_tried_again_and_never_a_reward(kafka: KafkaSettings, tmp_path: Path) -> None:
    """Nothing listens where the proxy should be: two attempts, then the end."""
    task = exact_task("away", "x", options={"tools": [], "max_retries": 0}, group_size=1)
    async with launcher(kafka, tmp_path, "http://127.0.0.1:9", attempts=2):
        await produce(kafka, [task])
        (told,) = (await finished(kafka, [task])).values()
    once = ["scheduled", "started", "harness_exited"]
    assert [(event.kind, event.attempt) for event in told] == [
        ("queued", 1), *[(kind, 1) for kind in once], *[(kind, 2) for kind in once], ("finished", 2),
    ]  # fmt: skip
    assert (told[-1].end_reason, told[-1].reward) == (EndReason.INFRASTRUCTURE, None)
    assert "the proxy could not be reached: Connection error." in told[-1].message


async def test_tasks_that_cannot_be_launched_end_with_the_reason(kafka: KafkaSettings, tmp_path: Path) -> None:
    tasks = [
        exact_task("harness", "x", harness=Harness(name="nope")),
        exact_task("options", "x", options={"tols": []}),
        exact_task("verifier", "x", verifier=Verifier(kind="exat")),
    ]
    async with standin_proxy(kafka, SECRET, say("x")) as proxy, launcher(kafka, tmp_path, proxy.url):
        await produce(kafka, [exact_task("none", "x", group_size=0), *tasks])
        events = await finished(kafka, tasks)
    assert len(events) == 6
    assert {(told[-1].task_id, told[-1].end_reason, told[-1].message) for told in events.values()} == {
        ("harness", EndReason.HARNESS_ERROR, "harness.name: unknown harness 'nope' (react, pi)"),
        ("options", EndReason.HARNESS_ERROR, "harness.options.tols: unknown field"),
        ("verifier", EndReason.HARNESS_ERROR, "verifier.kind: unknown kind 'exat' (exact, command, reasoning_gym)"),
    }
    assert proxy.requests == []


async def test_the_gate_holds_training_and_lets_evaluation_pass(kafka: KafkaSettings, tmp_path: Path) -> None:
    tasks = [exact_task(f"train{number}", "x", group_size=1) for number in range(3)]
    checks = [exact_task("eval", "x", group_size=1, evaluation=True)]
    settings = {"groups_in_flight": 1, "learner_grace_s": 1000}
    async with standin_proxy(kafka, SECRET, say("x")) as proxy, launcher(kafka, tmp_path, proxy.url, **settings):
        await produce(kafka, [*tasks, *checks])
        before = await finished(kafka, tasks[:1] + checks)
        await asyncio.sleep(1.0)
        assert len(proxy.requests) == 2
        async with RecordProducer(kafka, "test") as producer:
            await producer.send(TELEMETRY, Telemetry(source="learner", at_us=now_us(), gauges={"groups_consumed": 1}))
            await finished(kafka, tasks[:2] + checks)
            await asyncio.sleep(1.0)
            assert len(proxy.requests) == 3
            await producer.send(TELEMETRY, Telemetry(source="learner", at_us=now_us(), gauges={"groups_consumed": 2}))
            await finished(kafka, tasks + checks)
    assert sorted(told[-1].evaluation for told in before.values() if told[-1].kind == "finished") == [False, True]


async def test_two_launchers_on_one_state_folder(kafka: KafkaSettings, tmp_path: Path) -> None:
    async with launcher(kafka, tmp_path, "http://127.0.0.1:9"):
        with pytest.raises(StateInUse, match="another launcher"):
            async with launcher(kafka, tmp_path, "http://127.0.0.1:9"):
                pass
