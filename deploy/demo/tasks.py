"""The tasks of a demo: training, and the same held-out questions before and after."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from deploy.demo.letters import letters_tasks
from deploy.demo.plan import DemoPlan
from rollouts.tasksets.gym import gym_tasks
from rollouts.tasksets.needle import needle_source
from rollouts.verifiers.gym_client import GymWorker
from schemas import Task

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class DemoTasks:
    """All tasks of one demo."""

    training: list[Task]
    before: list[Task]
    after: list[Task]


async def make_tasks(plan: DemoPlan, model: Path) -> DemoTasks:
    """Make them all; a held-out question occurs in no training task.

    Raises:
        TaskProblems: the data set has not enough questions.
        VerifierError: reasoning-gym is not installed, or failed.
    """
    held_out_template = msgspec.structs.replace(plan.template, evaluation=True, group_size=plan.samples)
    seed = plan.options.seed
    if plan.options.quick:
        training = letters_tasks(model, "train", plan.most_groups, seed, plan.template)
        held_out = letters_tasks(model, "heldout", plan.questions, seed, held_out_template)
    else:
        worker = GymWorker()
        try:
            source = needle_source("train", plan.most_groups, seed=seed)
            training = await gym_tasks(worker, source, plan.template)
            source = needle_source("heldout", plan.questions, seed=seed, train_size=plan.most_groups)
            held_out = await gym_tasks(worker, source, held_out_template)
        finally:
            await worker.close()
    return DemoTasks(training, _again(held_out, 0, BEFORE), _again(held_out, 1, AFTER))


def _again(tasks: list[Task], epoch: int, phase: str) -> list[Task]:
    return [msgspec.structs.replace(task, epoch=epoch, labels=task.labels | {"phase": phase}) for task in tasks]
