"""Writes tasks to tasks.v1."""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from schemas import Task
from schemas.ids import now_us
from schemas.topics import TASKS

_BATCH = 200


async def produce_tasks(
    kafka: KafkaSettings, tasks: Sequence[Task], *, progress: Callable[[int], None] = lambda _count: None
) -> int:
    """Write checked tasks in their order, stamped with the time of writing. Returns how many.

    Args:
        kafka: where to.
        tasks: what `load_jsonl` or `gym_tasks` gave.
        progress: told how many are in the log so far.

    Raises:
        DeliveryError: the log did not take them all; those told to `progress` are in it.
    """
    written = 0
    async with RecordProducer(kafka, "task-producer") as producer:
        for start in range(0, len(tasks), _BATCH):
            batch = tasks[start : start + _BATCH]
            stamped = [msgspec.structs.replace(task, created_at_us=now_us()) for task in batch]
            await asyncio.gather(*(producer.send(TASKS, task) for task in stamped))
            written += len(batch)
            progress(written)
    return written
