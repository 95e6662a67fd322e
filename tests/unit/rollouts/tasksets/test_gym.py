"""Splits of reasoning-gym data sets, over a stand-in for its process that answers from a function."""

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from rollouts.errors import TaskProblems
from rollouts.options import OptionsError, Problem
from rollouts.tasksets.gym import GymSource, gym_tasks
from rollouts.tasksets.needle import needle_source, needle_template
from rollouts.tasksets.template import TaskTemplate
from rollouts.verifiers.gym_client import GymWorker
from schemas import Harness


class Answers:
    """Questions from a function of the item's number, which is seed + index as in reasoning-gym."""

    def __init__(self, question: Callable[[int], str]) -> None:
        self._question = question

    async def questions(
        self, dataset: str, config: Mapping[str, Any], seed: int, start: int, count: int
    ) -> list[tuple[str, str]]:
        return [(self._question(seed + index), "") for index in range(start, start + count)]


def worker(question: Callable[[int], str]) -> GymWorker:
    return cast(GymWorker, Answers(question))


async def test_train_seeds_are_far_apart_and_tasks_name_their_item() -> None:
    source = GymSource("sums", 3, {"digits": 1}, seed=2, extract="last_number", require_stop=True)
    tasks = await gym_tasks(worker(str), source, TaskTemplate(labels={"a": "b"}))
    assert [task.instruction for task in tasks] == ["3000000", "3000001", "3000002"]
    assert [task.task_id for task in tasks] == ["sums-train-2-0", "sums-train-2-1", "sums-train-2-2"]
    assert json.loads(tasks[1].verifier.options) == {
        "dataset": "sums", "config": {"digits": 1}, "seed": 3000000, "index": 1, "extract": "last_number",
        "require_stop": True, "timeout_s": None,
    }  # fmt: skip
    assert (tasks[0].taskset, tasks[0].labels) == ("sums", {"split": "train", "a": "b"})


async def test_held_out_questions_do_not_occur_in_training() -> None:
    """Training (seed 0) asks 0 to 99 modulo 150; the held-out split asks the same 150, and gets the other 50."""
    asked = worker(lambda number: str(number % 150))
    train = {task.instruction for task in await gym_tasks(asked, GymSource("x", 100), TaskTemplate())}
    held = await gym_tasks(asked, GymSource("x", 40, split="heldout", train_size=100), TaskTemplate())
    assert len(held) == 40
    assert not train & {task.instruction for task in held}
    assert held[0].task_id == f"x-heldout-{json.loads(held[0].verifier.options)['index']}"
    assert json.loads(held[0].verifier.options)["seed"] == 100_000_000


async def test_a_data_set_that_is_too_small_to_hold_out_is_refused() -> None:
    source = GymSource("x", 20, split="heldout", train_size=100)
    with pytest.raises(TaskProblems, match=r"only 0 of 200 held-out questions do not occur among 100 training"):
        await gym_tasks(worker(lambda number: str(number % 50)), source, TaskTemplate())


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (GymSource("x", 0), "size: must be 1 to 50000, not 0"),
        (GymSource("x", 1, seed=99), "seed: must be 0 to 98, not 99"),
        (GymSource("x", 1, split="heldout", train_size=-1), "train_size: must be 0 to 50000, not -1"),
    ],
)
async def test_figures_out_of_range(source: GymSource, problem: str) -> None:
    with pytest.raises(TaskProblems, match=problem):
        await gym_tasks(worker(str), source, TaskTemplate())


async def test_what_reasoning_gym_refuses_is_the_users_to_mend() -> None:
    class Refusing:
        async def questions(self, *_args: object) -> list[tuple[str, str]]:
            raise OptionsError(Problem("config", "x: no such option"))

    with pytest.raises(TaskProblems, match="config: x: no such option"):
        await gym_tasks(cast(GymWorker, Refusing()), GymSource("x", 1), TaskTemplate())


async def test_a_harness_that_does_not_exist_is_told_once() -> None:
    template = TaskTemplate(harness=Harness(name="nope"))
    with pytest.raises(TaskProblems) as caught:
        await gym_tasks(worker(str), GymSource("x", 5), template)
    assert str(caught.value) == "x-train-0-0: harness.name: unknown harness 'nope' (react, pi)"


@pytest.mark.parametrize("harness", ["react", "pi"])
async def test_the_demos_tasks(harness: str) -> None:
    tasks = await gym_tasks(worker(str), needle_source("train", 2), needle_template(harness, epoch=1))
    task = tasks[0]
    assert (task.sampling.temperature, task.sampling.max_tokens, task.group_size, task.epoch) == (0.7, 12, 8, 1)
    options = json.loads(task.verifier.options)
    assert (options["extract"], options["require_stop"]) == ("first_word", True)
    assert options["config"] == {"min_num_statements": 1, "max_num_statements": 1}
    assert json.loads(task.harness.options)["tools"] == []
