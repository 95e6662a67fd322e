"""Where a partition's new owner begins: the newest committed progress on assembler.v1, and the ends of both inputs."""

import asyncio
from collections.abc import Collection, Mapping

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from ingest.assembler.state import Offsets
from ingest.errors import BrokerUnavailable
from ingest.kafka.consumer import RecordConsumer
from ingest.kafka.offsets import OffsetReader, unavailable
from ingest.kafka.settings import KafkaSettings
from schemas import AssemblerProgress
from schemas.topics import ASSEMBLER, COMPLETIONS, ROLLOUTS

_log = structlog.get_logger(__name__)
_CLIENT = "forgestream-assembler"
_TIMEOUT_S = 30.0
_TAILS = (2_000, 50_000)
"""How far back from the end the newest record of a partition is looked for, before the whole topic is read."""


async def read_progress(kafka: KafkaSettings, partitions: Collection[int]) -> dict[int, AssemblerProgress]:
    """The newest committed progress of each partition that has one.

    The partitions' older owners must be fenced before: what they had open is decided then, and nothing of theirs can
    follow. Transactions of *other* partitions may still be open, though, and a `read_committed` reader sees nothing
    behind the first open one. So this reads up to the end that an uncommitted reader sees, which waits for them.

    Raises:
        BrokerUnavailable: the brokers do not answer, or a foreign transaction stays open.
    """
    start, end = await asyncio.to_thread(_bounds, kafka)
    found: dict[int, AssemblerProgress] = {}
    for tail in (*_TAILS, end):
        begin = max(start, end - tail)
        found = await _newest(kafka, begin, end)
        if begin == start or found.keys() >= set(partitions):
            break
    return {partition: found[partition] for partition in partitions if partition in found}


async def read_limits(kafka: KafkaSettings, partitions: Collection[int]) -> Mapping[int, tuple[Offsets, Offsets]]:
    """First and end offsets of both inputs, by partition.

    Raises:
        BrokerUnavailable: the brokers do not answer.
    """
    return await asyncio.to_thread(_limits, kafka, partitions)


def clamped(progress: AssemblerProgress, first: Offsets) -> Offsets:
    """Where to begin to read: at the progress, or at the log's first record where that is later."""
    wanted = Offsets(progress.rollouts_offset, progress.completions_offset)
    begin = Offsets(max(wanted.rollouts, first.rollouts), max(wanted.completions, first.completions))
    if begin != wanted and wanted != (0, 0):
        _log.warning(
            "records that open rollouts need have expired",
            partition=progress.partition,
            wanted=wanted._asdict(),
            first=first._asdict(),
        )
    return begin


async def _newest(kafka: KafkaSettings, begin: int, end: int) -> dict[int, AssemblerProgress]:
    found: dict[int, AssemblerProgress] = {}
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _TIMEOUT_S
    key = (ASSEMBLER, 0)
    async with RecordConsumer.assign(kafka, {key: begin}) as consumer:
        while consumer.positions()[key] < end:
            for received in await consumer.poll(5_000):
                found[received.record.partition] = received.record
                deadline = loop.time() + _TIMEOUT_S
            if loop.time() > deadline:
                raise BrokerUnavailable(
                    f"{ASSEMBLER.full_name(kafka.topic_prefix)} cannot be read to its end at offset {end}: is Kafka at "
                    f"{kafka.bootstrap_servers} up, or does a transaction hang (kafka-transactions.sh find-hanging)?"
                )
    return found


def _bounds(kafka: KafkaSettings) -> tuple[int, int]:
    """First offset of assembler.v1, and its end with open transactions counted in."""
    config = kafka.client(
        **{"client.id": _CLIENT, "group.id": "forgestream-none", "isolation.level": "read_uncommitted"}
    )
    consumer = Consumer(config)
    try:
        found = consumer.get_watermark_offsets(
            TopicPartition(ASSEMBLER.full_name(kafka.topic_prefix), 0), timeout=_TIMEOUT_S
        )
    except KafkaException as error:
        raise unavailable(kafka, error.args[0]) from error
    finally:
        consumer.close()
    return found


def _limits(kafka: KafkaSettings, partitions: Collection[int]) -> dict[int, tuple[Offsets, Offsets]]:
    rollouts, completions = ROLLOUTS.full_name(kafka.topic_prefix), COMPLETIONS.full_name(kafka.topic_prefix)
    wanted = [(topic, number) for topic in (rollouts, completions) for number in partitions]
    reader = OffsetReader(kafka, _CLIENT)
    starts, ends = reader.starts(wanted), reader.ends(wanted)
    return {
        number: (
            Offsets(starts[rollouts, number], starts[completions, number]),
            Offsets(ends[rollouts, number], ends[completions, number]),
        )
        for number in partitions
    }
