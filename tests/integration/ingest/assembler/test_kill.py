"""SIGKILL at any point: the log and a new process are enough for every rollout exactly once."""

import asyncio
import random
from pathlib import Path

from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from tests.integration.ingest.assembler.runs import Child, times, trajectories, until, write_rollout

COUNT = 300


async def test_killed_again_and_again_it_writes_each_rollout_once(kafka: KafkaSettings, tmp_path: Path) -> None:
    names = [f"r{number}" for number in range(COUNT)]
    writing = asyncio.create_task(_write_slowly(kafka, names))
    pause = random.Random(4)
    kills = 0
    while not writing.done() or len(await trajectories(kafka)) < COUNT:
        # A group of its own each time: the brokers hold a killed member's partitions back for ten seconds, and the
        # state must not depend on the group's offsets anyway.
        child = Child(kafka, tmp_path / "assembler.log", group=f"assembler-{kills}")
        before = len(await trajectories(kafka))
        await until(kafka, lambda found, before=before: len(found) > before or len(found) >= COUNT)
        await asyncio.sleep(pause.uniform(0, 0.3))
        child.kill()
        kills += 1
    await writing
    found = await trajectories(kafka)
    assert times(found) == dict.fromkeys(names, 1)
    assert all(t.trainable and t.completion_count == 3 and t.trained_tokens == 12 for t in found)
    assert kills >= 4


async def _write_slowly(kafka: KafkaSettings, names: list[str]) -> None:
    """About 15 s of work; some twenty rollouts are open at any time."""
    async with RecordProducer(kafka, "test") as producer, asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(write_rollout(producer, name, pause_s=0.25))
            await asyncio.sleep(0.05)
