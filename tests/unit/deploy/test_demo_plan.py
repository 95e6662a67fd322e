import json
from pathlib import Path

import pytest

from deploy.audit import Audit
from deploy.config import load
from deploy.demo.folder import fresh_folder
from deploy.demo.learning_runs import summary
from deploy.demo.letters import letters_tasks, letters_template
from deploy.demo.plan import DemoOptions, make_plan
from deploy.demo.report import DemoResult, report_lines, verdict
from deploy.errors import DeployError
from rollouts.tasksets.check import problems


def result(options=None, *, before=0.1, after=0.9, lost=(), steps=16):
    return DemoResult(
        plan=make_plan(options or DemoOptions()),
        folder=Path(".forgestream/demo"),
        rollouts=10,
        completions=10,
        trajectories=10,
        groups=4,
        steps=steps,
        policy_version=16,
        reward_by_version=[
            {"policy_version": 0, "held_out": False, "rollouts": 8, "reward": 0.125},
            {"policy_version": 0, "held_out": True, "rollouts": 32, "reward": before},
            {"policy_version": 16, "held_out": True, "rollouts": 32, "reward": after},
        ],
        held_out={"before": before, "after": after},
        unjudged=0,
        tokens={"prompt": 1, "sampled": 2, "trained": 3},
        delta_mean=0.01,
        audit=Audit(tuple(lost), ()),
    )


def test_the_settings_of_a_demo_are_known_ones(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    plan = make_plan(DemoOptions(seed=3, shuffle_rewards=True, engine="vllm"))
    settings = load(None, plan.assignments(Path("/models/smollm2")), {}).settings
    assert settings.learner.max_steps == 16
    assert settings.learner.shuffle_rewards is True
    assert (settings.learner.lora_rank, settings.learner.lr, settings.learner.temperature) == (16, 1e-3, 0.7)
    assert settings.engine.kind == "vllm"
    assert settings.engine.model == settings.learner.model == settings.proxy.model == Path("/models/smollm2")


@pytest.mark.parametrize(
    ("options", "values", "succeeded", "says"),
    [
        (DemoOptions(), {}, True, "the policy learned"),
        (DemoOptions(), {"after": 0.69}, False, "did NOT reach 0.7"),
        (DemoOptions(), {"before": 0.6, "after": 0.8}, False, "did NOT reach 0.7"),
        (DemoOptions(), {"lost": ["rollout r9 never finished"]}, False, "the policy learned"),
        (DemoOptions(), {"steps": 3}, False, "the policy learned"),
        (DemoOptions(shuffle_rewards=True), {"after": 0.12}, True, "no rise, as it should be"),
        (DemoOptions(shuffle_rewards=True), {}, False, "and yet it ROSE"),
        (DemoOptions(quick=True), {"after": 0.1}, True, "not that it learns"),
    ],
)
def test_the_verdict_is_honest(options, values, succeeded, says):
    told = result(options, **values)
    assert told.succeeded is succeeded
    assert says in verdict(told)


def test_the_report_shows_versions_side_by_side_and_what_is_lost():
    lines = report_lines(result(lost=["rollout r9 never finished"]))
    assert "      0                  8            0.125                 32              0.1" in lines
    assert "     16                  –                –                 32              0.9" in lines
    assert "lost 1, doubled 0" in lines
    assert "  rollout r9 never finished" in lines


def test_the_object_has_the_promised_names():
    promised = "rollouts completions trajectories groups steps policy_version reward_by_version delta_mean lost doubled"
    told = json.loads(json.dumps(result().with_walls({"train": 1.0}).as_json()))
    assert set(promised.split()) < set(told)
    assert told["wall_s"] == {"train": 1.0}
    assert (told["lost"], told["doubled"]) == (0, 0)


def test_letters_are_valid_tasks_with_lower_case_answers(tmp_path):
    vocabulary = {"a": 0, "the": 1, "Ġthe": 2, "Ġtool": 3, "The": 4, "9": 5, "Ġ": 6, "<|im_end|>": 7}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}}))
    train = letters_tasks(tmp_path, "train", 3, seed=0, template=letters_template("react"))
    other = letters_tasks(tmp_path, "train", 3, seed=1, template=letters_template("react"))
    held_out = letters_tasks(tmp_path, "heldout", 3, seed=0, template=letters_template("pi"))
    assert json.loads(train[0].verifier.options) == {"expected": ["a", "the", "tool"]}
    assert len({task.instruction for task in (*train, *other, *held_out)}) == 9
    assert [problems(task) for task in (*train, *held_out)] == [[]] * 6


def test_a_demo_folder_is_emptied_and_nothing_else(tmp_path):
    folder = tmp_path / "demo"
    fresh_folder(folder)
    (folder / "archive").mkdir()
    (folder / "secret").write_text("old")
    (tmp_path / "models").mkdir()
    fresh_folder(folder)
    assert not (folder / "archive").exists()
    assert not (folder / "secret").exists()
    assert (tmp_path / "models").is_dir()


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path):
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(DeployError, match="was not made by a demo"):
        fresh_folder(folder)
    assert (folder / "thesis.tex").exists()
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(DeployError, match="was not made by a demo"):
        fresh_folder(link)


def test_a_summary_of_runs_fails_with_its_worst():
    runs = [{**result().as_json(), "seed": 0}, {"seed": 1, "shuffle_rewards": False, "succeeded": False}]
    told = summary(runs)
    assert told["succeeded"] is False
    assert [(run["seed"], run.get("after")) for run in told["runs"]] == [(0, 0.9), (1, None)]
