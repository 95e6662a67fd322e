"""Tasks from a reasoning-gym data set, in a training and a held-out split that share no question.

Item i of a reasoning-gym data set with seed s is drawn from Random(s + i): data sets of nearby seeds share nearly all
items. The splits therefore begin far apart, and held-out questions that also occur in training are dropped (small
data sets repeat their questions).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from rollouts.errors import TaskProblems
from rollouts.options import OptionsError
from rollouts.tasksets.check import problems
from rollouts.tasksets.template import TaskTemplate
from rollouts.verifiers.extract import Extract
from rollouts.verifiers.gym_client import GymWorker
from rollouts.verifiers.reasoning_gym import GymOptions
from schemas import Task, Verifier

_SEED_STEP = 10**6
_HELDOUT_SEED = 10**8
MAX_SEED = _HELDOUT_SEED // _SEED_STEP - 2
MAX_SIZE = 50_000
_BATCH = 500


@dataclass(frozen=True)
class GymSource:
    """A part of a reasoning-gym data set."""

    dataset: str
    """Its name, for example `needle_haystack`."""
    size: int
    """Tasks wanted."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its configuration, without seed and size."""
    seed: int = 0
    """Number of the training split, from 0; the held-out split is the same for all."""
    split: Literal["train", "heldout"] = "train"
    train_size: int = 1000
    """For the held-out split: how many training questions of this seed it must not share."""
    extract: Extract = "whole"
    """Which part of the reply is scored."""
    require_stop: bool = False
    """A reply that a token budget cut off earns nothing."""

    @property
    def item_seed(self) -> int:
        """The seed that reasoning-gym is given."""
        return _HELDOUT_SEED if self.split == "heldout" else _SEED_STEP * (self.seed + 1)


async def gym_tasks(worker: GymWorker, source: GymSource, template: TaskTemplate) -> list[Task]:
    """The tasks of a split, named `DATASET-SPLIT-SEED-INDEX`; the instruction is the data set's question, unchanged.

    Raises:
        TaskProblems: unknown data set, refused configuration, or fewer different questions than wanted.
        VerifierError: reasoning-gym is not installed, or failed.
    """
    _check(source)
    try:
        taken = await _train_questions(worker, source) if source.split == "heldout" else set()
        items = await _items(worker, source, taken)
    except OptionsError as error:
        raise TaskProblems([str(error)]) from error
    tasks = [_task(source, template, index, question) for index, question in items]
    found = [f"{task.task_id}: {problem}" for task in tasks for problem in problems(task)]
    if found:
        raise TaskProblems(found[:1])
    return tasks


def _check(source: GymSource) -> None:
    if not 1 <= source.size <= MAX_SIZE:
        raise TaskProblems([f"size: must be 1 to {MAX_SIZE}, not {source.size}"])
    if not 0 <= source.seed <= MAX_SEED:
        raise TaskProblems([f"seed: must be 0 to {MAX_SEED}, not {source.seed}"])
    if not 0 <= source.train_size <= MAX_SIZE:
        raise TaskProblems([f"train_size: must be 0 to {MAX_SIZE}, not {source.train_size}"])


async def _train_questions(worker: GymWorker, source: GymSource) -> set[str]:
    seed = _SEED_STEP * (source.seed + 1)
    found: set[str] = set()
    for start in range(0, source.train_size, _BATCH):
        count = min(_BATCH, source.train_size - start)
        items = await worker.questions(source.dataset, source.config, seed, start, count)
        found.update(question for question, _answer in items)
    return found


async def _items(worker: GymWorker, source: GymSource, taken: set[str]) -> list[tuple[int, str]]:
    """Index and question of the first `size` items that are not taken; gives up after ten times as many."""
    found: list[tuple[int, str]] = []
    tried = 0
    while len(found) < source.size and tried < 10 * source.size:
        count = min(_BATCH, source.size)
        batch = await worker.questions(source.dataset, source.config, source.item_seed, tried, count)
        found += [(tried + i, question) for i, (question, _) in enumerate(batch) if question not in taken]
        tried += count
    if len(found) < source.size:
        raise TaskProblems(
            [
                f"{source.dataset}: only {len(found)} of {tried} held-out questions do not occur among "
                f"{source.train_size} training questions: ask for fewer, or make the configuration wider"
            ]
        )
    return found[: source.size]


def _task(source: GymSource, template: TaskTemplate, index: int, question: str) -> Task:
    options = GymOptions(
        dataset=source.dataset,
        config=dict(source.config),
        seed=source.item_seed,
        index=index,
        extract=source.extract,
        require_stop=source.require_stop,
    )
    seed = "" if source.split == "heldout" else f"-{source.seed}"
    return Task(
        task_id=f"{source.dataset}-{source.split}{seed}-{index}",
        taskset=template.taskset or source.dataset,
        instruction=question,
        harness=template.harness,
        verifier=Verifier(kind="reasoning_gym", options=msgspec.json.encode(options).decode()),
        group_size=template.group_size,
        sampling=template.sampling,
        limits=template.limits,
        epoch=template.epoch,
        evaluation=template.evaluation,
        policy_id=template.policy_id,
        labels={"split": source.split, **template.labels},
    )
