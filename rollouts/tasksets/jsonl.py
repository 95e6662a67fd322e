"""Tasks from a JSONL file: one JSON object a line.

    {"task_id": "sum-1", "instruction": "What is 2 + 3?", "verifier": {"kind": "exact", "expected": "5"}}

Further fields: `files` (path → text, or path → {"text" | "base64", "executable"}), `image`, `harness` (a name, or
{"name", "version", "options"}), `group_size`, `sampling`, `limits`, `evaluation`, `policy_id`, `labels`, `taskset`,
`epoch`. What is left out comes from the set's template.
"""

import base64
import binascii
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollouts.errors import TaskProblems
from rollouts.options import OptionsError, Problem, read_json
from rollouts.tasksets.check import problems
from rollouts.tasksets.template import TaskTemplate
from schemas import Harness, Task, TaskFile, Verifier

_SHOWN_PROBLEMS = 20


class _Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _File(_Strict, frozen=True):
    text: str | None = None
    base64: str | None = None
    executable: bool = False


class _Harness(_Strict, frozen=True):
    name: str
    version: str = ""
    options: dict[str, Any] = {}


class _Sampling(_Strict, frozen=True):
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    seed: int | None = None


class _Limits(_Strict, frozen=True):
    wall_s: float | None = None
    startup_s: float | None = None
    calls: int | None = None
    tokens: int | None = None


class _Line(_Strict, frozen=True):
    task_id: str
    instruction: str
    verifier: dict[str, Any]
    files: dict[str, str | _File] = {}
    image: str = ""
    harness: str | _Harness | None = None
    group_size: int | None = None
    sampling: _Sampling = _Sampling()
    limits: _Limits = _Limits()
    evaluation: bool | None = None
    policy_id: str | None = None
    taskset: str | None = None
    epoch: int | None = None
    labels: dict[str, str] = {}


def load_jsonl(path: Path, template: TaskTemplate) -> list[Task]:
    """The tasks of a file. The set is named after the file where neither line nor template names it.

    Raises:
        TaskProblems: the file is missing or empty, or lines are wrong: one line a problem, `FILE:LINE: FIELD: why`.
    """
    found: list[str] = []
    tasks: list[Task] = []
    first_seen: dict[tuple[str, str, int], int] = {}
    template = template if template.taskset else msgspec.structs.replace(template, taskset=path.stem)
    for number, line in _lines(path):
        task, wrong = _read_line(line, template)
        if task is not None:
            key = (task.taskset, task.task_id, task.epoch)
            if (before := first_seen.setdefault(key, number)) != number:
                wrong.append(Problem("task_id", f"{task.task_id!r} is taken by line {before}"))
            tasks.append(task)
        found += [f"{path.name}:{number}: {problem}" for problem in wrong]
    if found:
        raise TaskProblems(found[:_SHOWN_PROBLEMS], more=max(0, len(found) - _SHOWN_PROBLEMS))
    if not tasks:
        raise TaskProblems([f"{path.name}: no tasks: write one JSON object a line"])
    return tasks


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
    except OSError as error:
        raise TaskProblems([f"{path}: cannot be read: {error.strerror}"]) from error


def _read_line(line: bytes, template: TaskTemplate) -> tuple[Task | None, list[Problem]]:
    try:
        parsed = read_json(line, _Line)
        task = _task(parsed, template)
    except OptionsError as error:
        return None, [error.problem]
    return task, problems(task)


def _task(line: _Line, template: TaskTemplate) -> Task:
    kind = line.verifier.get("kind")
    if not isinstance(kind, str):
        raise OptionsError(Problem("verifier.kind", "missing" if kind is None else "must be str"))
    options = {name: value for name, value in line.verifier.items() if name != "kind"}
    return Task(
        task_id=line.task_id,
        taskset=line.taskset or template.taskset,
        instruction=line.instruction,
        files=[_file(path, content) for path, content in line.files.items()],
        image=line.image,
        harness=_harness(line.harness, template.harness),
        verifier=Verifier(kind=kind, options=msgspec.json.encode(options).decode()),
        group_size=template.group_size if line.group_size is None else line.group_size,
        sampling=_overlaid(template.sampling, line.sampling),
        limits=_overlaid(template.limits, line.limits),
        epoch=template.epoch if line.epoch is None else line.epoch,
        evaluation=template.evaluation if line.evaluation is None else line.evaluation,
        policy_id=line.policy_id or template.policy_id,
        labels=template.labels | line.labels,
    )


def _harness(given: str | _Harness | None, default: Harness) -> Harness:
    if given is None:
        return default
    if isinstance(given, str):
        return default if given == default.name else Harness(name=given)
    return Harness(name=given.name, version=given.version, options=msgspec.json.encode(given.options).decode())


def _file(path: str, content: str | _File) -> TaskFile:
    if isinstance(content, str):
        return TaskFile(path=path, content=content.encode())
    if (content.text is None) == (content.base64 is None):
        raise OptionsError(Problem(f"files.{path}", "needs either text or base64"))
    if content.text is not None:
        return TaskFile(path=path, content=content.text.encode(), executable=content.executable)
    try:
        data = base64.b64decode(content.base64 or "", validate=True)
    except binascii.Error as error:
        raise OptionsError(Problem(f"files.{path}.base64", str(error))) from error
    return TaskFile(path=path, content=data, executable=content.executable)


def _overlaid(default: Any, given: _Sampling | _Limits) -> Any:
    changes = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not None}
    return msgspec.structs.replace(default, **changes)
