"""The real reasoning-gym, from task set to reward."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from ingest.kafka.settings import KafkaSettings
from rollouts.errors import TaskProblems
from rollouts.tasksets.gym import GymSource, gym_tasks
from rollouts.tasksets.needle import needle_source, needle_template
from rollouts.verifiers.base import Submission
from rollouts.verifiers.gym_client import GymWorker
from rollouts.verifiers.reasoning_gym import GymOptions, GymVerifier
from schemas import EndReason
from tests.support.launchers import SECRET, finished, launcher, produce
from tests.support.standin_proxy import Reply, standin_proxy


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker() -> AsyncIterator[GymWorker]:
    worker = GymWorker()
    yield worker
    await worker.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_the_demos_splits_and_their_scores(worker: GymWorker) -> None:
    train = await gym_tasks(worker, needle_source("train", 50), needle_template())
    held = await gym_tasks(worker, needle_source("heldout", 20, train_size=50), needle_template(evaluation=True))
    assert train[0].instruction == "Corrie adores geology. \nWho adores geology? Reply only with a name."
    assert len({task.task_id for task in [*train, *held]}) == 70
    assert not {task.instruction for task in train} & {task.instruction for task in held}
    verifier = GymVerifier(worker, 60.0)
    options = GymOptions(**json.loads(train[0].verifier.options))
    for answer, finish, reward in (
        ("Corrie", "stop", 1.0), ("Corrie.", "stop", 1.0), ("corrie is", "stop", 1.0), ("Corrie", "length", 0.0),
        ("It is Corrie", "stop", 0.0), ("", "stop", 0.0),
    ):  # fmt: skip
        verdict = await verifier.verify(options, Submission("r", 1, answer, finish, Path()))
        assert (answer, finish, verdict.reward) == (answer, finish, reward)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (GymSource("nope", 1), "dataset: reasoning-gym has no data set 'nope'"),
        (GymSource("needle_haystack", 1, {"statements": 1}), "config: needle_haystack: .*unexpected keyword argument"),
        (GymSource("needle_haystack", 1, {"min_num_statements": 0}), "min_num_statements must be greater than 0"),
    ],
)
async def test_what_reasoning_gym_does_not_know_is_told(worker: GymWorker, source: GymSource, problem: str) -> None:
    with pytest.raises(TaskProblems, match=problem):
        await gym_tasks(worker, source, needle_template())


async def test_a_rollout_is_scored_by_reasoning_gym(kafka: KafkaSettings, tmp_path: Path) -> None:
    worker = GymWorker()
    tasks = await gym_tasks(worker, needle_source("train", 2), needle_template(group_size=2))
    await worker.close()

    def script(bearer: object, messages: list[dict[str, str]]) -> Reply:
        name = messages[0]["content"].split()[0]
        return Reply(name, finish="length" if name == "Corrie" else "stop")

    async with standin_proxy(kafka, SECRET, script) as proxy, launcher(kafka, tmp_path, proxy.url):
        await produce(kafka, tasks)
        events = await finished(kafka, tasks)
    assert {(told[-1].task_id, told[-1].end_reason, told[-1].reward) for told in events.values()} == {
        (tasks[0].task_id, EndReason.COMPLETED, 0.0),
        (tasks[1].task_id, EndReason.COMPLETED, 1.0),
    }
    assert {json.dumps(told[-1].rewards, sort_keys=True) for told in events.values()} == {
        '{"score": 1.0, "stopped": 0.0}', '{"score": 1.0, "stopped": 1.0}',
    }  # fmt: skip
