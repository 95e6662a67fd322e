"""The quick demo's tasks: one token, which should be a lower-case word.

The tiny model has random weights and no knowledge, but about every third of its tokens is a lower-case word. So groups
have a reward spread from the first step on, and nothing heavy is needed to judge a reply.
"""

import json
import re
from pathlib import Path

import msgspec

from rollouts.tasksets.template import TaskTemplate
from schemas import Harness, Limits, Sampling, Task, Verifier

_WORD = re.compile(r"Ġ?([a-z]+)")
"""A lower-case word as a byte-level vocabulary writes it; Ġ is a blank before it."""


def letters_template(harness: str) -> TaskTemplate:
    """How they are attempted."""
    options = {"react": {"tools": []}, "pi": {"tools": [], "system": "Answer."}}.get(harness, {})
    return TaskTemplate(
        taskset="letters",
        harness=Harness(name=harness, options=json.dumps(options)),
        group_size=8,
        sampling=Sampling(temperature=1.0, max_tokens=1),
        limits=Limits(wall_s=120, startup_s=60),
    )


def letters_tasks(model: Path, split: str, size: int, seed: int, template: TaskTemplate) -> list[Task]:
    """`size` tasks of a split; those of different splits and seeds ask different questions."""
    vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted({match.group(1) for token in vocabulary if (match := _WORD.fullmatch(token))})
    verifier = Verifier(kind="exact", options=json.dumps({"expected": words}))
    first = 0 if split == "heldout" else 10_000 * (seed + 1)
    tasks = []
    for number in range(first, first + size):
        task = Task(task_id=f"letters-{split}-{number}", instruction=f"Say word {number}.", verifier=verifier)
        tasks.append(msgspec.structs.replace(task, **_common(template), labels={"split": split}))
    return tasks


def _common(template: TaskTemplate) -> dict[str, object]:
    return {
        name: getattr(template, name)
        for name in ("taskset", "harness", "group_size", "sampling", "limits", "epoch", "evaluation", "policy_id")
    }
