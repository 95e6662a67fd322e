"""Checks a task: what could only fail later is said before it is produced, and again before it is launched."""

import math
from collections.abc import Iterator
from pathlib import PurePosixPath

from rollouts.harnesses import PACKS
from rollouts.options import OptionsError, Problem, read_json
from rollouts.verifiers import OPTIONS
from schemas import Limits, Sampling, Task, TaskFile

MAX_GROUP_SIZE = 1024
_MAX_INLINE_BYTES = 8 * 1024 * 1024
"""Files of one task together: a record has 10 MiB at most."""


def problems(task: Task) -> list[Problem]:
    """What is wrong with a task, field by field; empty when it can be launched."""
    return [*_identity(task), *_files(task), *_harness(task), *_verifier(task), *_figures(task.sampling, task.limits)]


def _identity(task: Task) -> Iterator[Problem]:
    if not task.task_id:
        yield Problem("task_id", "must not be empty")
    if not task.instruction.strip():
        yield Problem("instruction", "must not be empty")
    if not 1 <= task.group_size <= MAX_GROUP_SIZE:
        yield Problem("group_size", f"must be 1 to {MAX_GROUP_SIZE}, not {task.group_size}")
    if not task.policy_id:
        yield Problem("policy_id", "must not be empty")


def _files(task: Task) -> Iterator[Problem]:
    for file in task.files:
        yield from _file(file)
    size = sum(len(file.content or b"") for file in task.files)
    if size > _MAX_INLINE_BYTES:
        yield Problem("files", f"{size} bytes together, more than {_MAX_INLINE_BYTES}")


def _file(file: TaskFile) -> Iterator[Problem]:
    path = PurePosixPath(file.path)
    if not file.path or path.is_absolute() or ".." in path.parts or "\0" in file.path:
        yield Problem(f"files.{file.path}", "must be a relative path inside of the workspace")
    if file.content is None:
        yield Problem(f"files.{file.path}", "has no content (content by reference is not read yet)")


def _harness(task: Task) -> Iterator[Problem]:
    pack = PACKS.get(task.harness.name)
    if pack is None:
        yield Problem("harness.name", f"unknown harness {task.harness.name!r} ({', '.join(PACKS)})")
        return
    if task.harness.version not in ("", pack.version):
        yield Problem("harness.version", f"{pack.name} is pinned to {pack.version}, not {task.harness.version}")
    yield from _options("harness.options", task.harness.options, pack.options)


def _verifier(task: Task) -> Iterator[Problem]:
    options = OPTIONS.get(task.verifier.kind)
    if options is None:
        yield Problem("verifier.kind", f"unknown kind {task.verifier.kind!r} ({', '.join(OPTIONS)})")
        return
    yield from _options("verifier", task.verifier.options, options)


def _options(field: str, text: str, kind: type) -> Iterator[Problem]:
    try:
        read_json(text, kind)
    except OptionsError as error:
        yield error.problem.below(field)


def _figures(sampling: Sampling, limits: Limits) -> Iterator[Problem]:
    figures = {
        "sampling.temperature": sampling.temperature,
        "sampling.max_tokens": sampling.max_tokens,
        "limits.wall_s": limits.wall_s,
        "limits.startup_s": limits.startup_s,
        "limits.calls": limits.calls,
        "limits.tokens": limits.tokens,
    }
    for field, value in figures.items():
        if not math.isfinite(value) or value < 0:
            yield Problem(field, f"must be 0 or more, not {value}")
    if not 0 < sampling.top_p <= 1:
        yield Problem("sampling.top_p", f"must be above 0 and at most 1, not {sampling.top_p}")
