import json
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import TaskProblems
from rollouts.tasksets.jsonl import load_jsonl
from rollouts.tasksets.template import TaskTemplate
from schemas import Harness, Limits, Sampling, TaskFile, Verifier

GOOD: dict[str, Any] = {"task_id": "a", "instruction": "Say 5.", "verifier": {"kind": "exact", "expected": "5"}}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_a_short_line_takes_the_rest_from_the_template(tmp_path: Path) -> None:
    template = TaskTemplate(group_size=4, sampling=Sampling(temperature=0.5, max_tokens=9), epoch=2, labels={"a": "1"})
    (task,) = load_jsonl(write(tmp_path, GOOD), template)
    assert (task.task_id, task.taskset, task.instruction) == ("a", "tasks", "Say 5.")
    assert task.verifier == Verifier(kind="exact", options='{"expected":"5"}')
    assert (task.harness, task.group_size, task.epoch, task.labels) == (Harness(name="react"), 4, 2, {"a": "1"})
    assert task.sampling == Sampling(temperature=0.5, max_tokens=9)
    assert not task.evaluation


def test_a_full_line_says_all_itself(tmp_path: Path) -> None:
    line = GOOD | {
        "taskset": "mine",
        "epoch": 1,
        "files": {"a.txt": "text", "bin/run": {"base64": "AAE=", "executable": True}},
        "harness": {"name": "pi", "version": "0.73.1", "options": {"tools": ["bash"]}},
        "group_size": 3,
        "sampling": {"max_tokens": 12},
        "limits": {"wall_s": 5, "calls": 2},
        "evaluation": True,
        "policy_id": "other",
        "labels": {"b": "2"},
        "image": "box:1",
    }
    (task,) = load_jsonl(write(tmp_path, "", line, "  "), TaskTemplate(labels={"a": "1"}))
    assert (task.taskset, task.epoch, task.group_size, task.policy_id, task.image) == ("mine", 1, 3, "other", "box:1")
    assert task.files == [
        TaskFile(path="a.txt", content=b"text"),
        TaskFile(path="bin/run", content=b"\x00\x01", executable=True),
    ]
    assert task.harness == Harness(name="pi", version="0.73.1", options='{"tools":["bash"]}')
    assert (task.sampling, task.limits) == (Sampling(max_tokens=12), Limits(wall_s=5.0, calls=2))
    assert (task.evaluation, task.labels) == (True, {"a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"verifier": {"kind": "exat"}}, "verifier.kind: unknown kind 'exat' (exact, command, reasoning_gym)"),
        ({"verifier": {"expected": "5"}}, "verifier.kind: missing"),
        ({"verifier": {"kind": 5}}, "verifier.kind: must be str"),
        ({"verifier": {"kind": "exact"}}, "verifier.expected: missing"),
        ({"verifier": {"kind": "exact", "expected": "5", "case": 1}}, "verifier.case: unknown field"),
        ({"verifier": "exact"}, "verifier: must be object, not str"),
        ({"task_id": 5}, "task_id: must be str, not int"),
        ({"task_id": ""}, "task_id: must not be empty"),
        ({"instruction": " "}, "instruction: must not be empty"),
        ({"instructions": "x"}, "instructions: unknown field"),
        ({"harness": "reakt"}, "harness.name: unknown harness 'reakt' (react, pi)"),
        ({"harness": {"name": "react", "version": "7"}}, "harness.version: react is pinned to 1, not 7"),
        ({"harness": {"name": "react", "options": {"tols": []}}}, "harness.options.tols: unknown field"),
        ({"group_size": 0}, "group_size: must be 1 to 1024, not 0"),
        ({"group_size": "8"}, "group_size: must be int | null, not str"),
        ({"sampling": {"temperature": -1}}, "sampling.temperature: must be 0 or more, not -1.0"),
        ({"sampling": {"top_p": 0}}, "sampling.top_p: must be above 0 and at most 1, not 0.0"),
        ({"limits": {"wall": 5}}, "limits.wall: unknown field"),
        ({"files": {"../x": "y"}}, "files.../x: must be a relative path inside of the workspace"),
        ({"files": {"/etc/x": "y"}}, "files./etc/x: must be a relative path inside of the workspace"),
        ({"files": {"x": {}}}, "files.x: needs either text or base64"),
        ({"files": {"x": {"base64": "?"}}}, "files.x.base64: Only base64 data is allowed"),
    ],
)
def test_a_problem_names_file_line_and_field(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    path = write(tmp_path, GOOD, GOOD | {"task_id": "b"} | changes)
    with pytest.raises(TaskProblems) as caught:
        load_jsonl(path, TaskTemplate())
    assert str(caught.value) == f"tasks.jsonl:2: {problem}"


def test_all_problems_are_told_up_to_twenty(tmp_path: Path) -> None:
    lines = [GOOD | {"task_id": f"t{number}", "group_size": 0} for number in range(25)]
    with pytest.raises(TaskProblems) as caught:
        load_jsonl(write(tmp_path, *lines), TaskTemplate())
    told = str(caught.value).splitlines()
    assert told[0] == "tasks.jsonl:1: group_size: must be 1 to 1024, not 0"
    assert (len(told), told[-1]) == (21, "… and 5 more")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "tasks.jsonl: no tasks: write one JSON object a line"),
        (["", " "], "tasks.jsonl: no tasks: write one JSON object a line"),
        (["{"], "tasks.jsonl:1: not JSON: Input data was truncated"),
        (["[]"], "tasks.jsonl:1: must be object, not array"),
        ([GOOD, GOOD], "tasks.jsonl:2: task_id: 'a' is taken by line 1"),
        ([b"\xff".decode("latin-1").join('""')], "tasks.jsonl:1: must be object, not str"),
    ],
)
def test_files_that_hold_no_tasks(tmp_path: Path, lines: list[object], problem: str) -> None:
    with pytest.raises(TaskProblems) as caught:
        load_jsonl(write(tmp_path, *lines), TaskTemplate())
    assert str(caught.value) == problem


def test_the_same_id_in_another_epoch_or_set_is_another_task(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD, GOOD | {"epoch": 1}, GOOD | {"taskset": "other"})
    assert len(load_jsonl(path, TaskTemplate())) == 3


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(TaskProblems, match="nothing: cannot be read: No such file or directory"):
        load_jsonl(tmp_path / "nothing", TaskTemplate())


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"task_id": "\xff"}\n')
    with pytest.raises(TaskProblems, match=r"tasks\.jsonl:1: not JSON"):
        load_jsonl(path, TaskTemplate())
