"""The archiver's process: reads all topics from where the archive ends, and writes rows in good time."""

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import msgspec

from ingest.archive import letters
from ingest.archive.buffer import Buffer
from ingest.archive.columns import to_table
from ingest.archive.errors import ArchiveAhead
from ingest.archive.files import next_offset, partition_folder, remove_leftovers, sole_writer
from ingest.archive.metrics import ArchiverMetrics
from ingest.archive.settings import ArchiverSettings
from ingest.errors import BrokerUnavailable
from ingest.kafka.consumer import RecordConsumer
from ingest.kafka.offsets import OffsetReader
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.service.telemetry import report_gauges
from schemas import ALL_TOPICS, Topic
from schemas.topics import DEAD_LETTER_SUFFIX

MAX_RECORDS = 5_000
WATCH_INTERVAL_S = 1.0
_CLIENT = "forgestream-archiver"
_TICK_S = 0.2

Place = tuple[str, int]
"""Folder name of a topic, and a partition."""


async def run(ctx: ServiceContext, settings: ArchiverSettings, kafka: KafkaSettings) -> None:
    """Archive until the service is asked to stop, then write what is in hand.

    Raises:
        ArchiveError: the folder is in use, damaged, foreign, or cannot be written.
        IngestError: Kafka cannot be reached, or refuses.
    """
    with sole_writer(settings.root):
        remove_leftovers(settings.root)
        await Archiver(ctx, settings, kafka).run()


class Archiver:
    """One buffer a partition, and the loop over them."""

    def __init__(self, ctx: ServiceContext, settings: ArchiverSettings, kafka: KafkaSettings) -> None:
        self._ctx = ctx
        self._settings = settings
        self._kafka = kafka
        self._metrics = ArchiverMetrics(ctx.registry)
        self._sizes = msgspec.msgpack.Encoder()
        self._ends: dict[Place, int] = {}
        self._buffers: dict[Place, Buffer] = {}

    async def run(self) -> None:
        """Until the service is asked to stop, or an error."""
        self._buffers = await asyncio.to_thread(self._open)
        records = {(topic, n): self._buffers[topic.base_name, n].position for topic, n in _partitions()}
        dead = {topic: self._buffers[_dead(topic), letters.PARTITION].position for topic in ALL_TOPICS}
        reader = letters.LetterReader(self._kafka, dead)
        async with (
            RecordProducer(self._kafka, _CLIENT) as telemetry,
            RecordConsumer.assign(self._kafka, records, group="archiver") as consumer,
        ):
            self._ctx.ready()
            try:
                async with asyncio.TaskGroup() as group:
                    watch = group.create_task(self._watch(consumer))
                    group.create_task(report_gauges(self._ctx, telemetry, self._gauges))
                    reading = [
                        group.create_task(self._read(consumer)),
                        group.create_task(self._read_letters(reader)),
                    ]
                    await asyncio.wait(reading)
                    watch.cancel()
            except ExceptionGroup as group_of_errors:
                raise group_of_errors.exceptions[0] from None
            finally:
                await reader.close()
        await self._write(self._buffers)

    def _open(self) -> dict[Place, Buffer]:
        """A buffer a partition, at the offset where its archive ends."""
        prefix = self._kafka.topic_prefix
        names = {(topic.full_name(prefix), n): (topic, topic.base_name, n) for topic, n in _partitions()}
        names |= {(topic.dead_letters(prefix), letters.PARTITION): (topic, _dead(topic), 0) for topic in ALL_TOPICS}
        offsets = OffsetReader(self._kafka, _CLIENT)
        starts, ends = offsets.starts(names), offsets.ends(names)
        buffers: dict[Place, Buffer] = {}
        for key, (topic, folder_name, number) in names.items():
            folder = partition_folder(self._settings.root, folder_name, number)
            archived = next_offset(folder)
            if archived is not None and archived > ends[key]:
                raise ArchiveAhead(key[0], number, archived, ends[key], self._settings.root)
            if archived is not None and archived < starts[key]:
                lost = starts[key] - archived
                self._ctx.log.warning("records expired before they were archived", topic=key[0], records=lost)
            is_dead = folder_name != topic.base_name
            table = letters.to_table if is_dead else partial(to_table, topic.record)
            buffers[folder_name, number] = Buffer(folder, table, max(archived or 0, starts[key]))
        return buffers

    async def _read(self, consumer: RecordConsumer) -> None:
        while not self._ctx.stopping.is_set():
            for one in await consumer.poll(MAX_RECORDS, _TICK_S):
                size = len(self._sizes.encode(one.record))
                self._buffers[one.topic.base_name, one.partition].add(one, size, time.monotonic())
            for (topic, number), position in consumer.positions().items():
                self._buffers[topic.base_name, number].position = position
            await self._write_due()

    async def _read_letters(self, reader: letters.LetterReader) -> None:
        while not self._ctx.stopping.is_set():
            for one in await reader.poll():
                self._buffers[_dead(one.topic), letters.PARTITION].add(one, len(one.value), time.monotonic())

    async def _write_due(self) -> None:
        now = time.monotonic()
        await self._write(place for place, buffer in self._buffers.items() if buffer.due(self._settings, now))

    async def _write(self, places: Iterable[Place]) -> None:
        for place in list(places):
            with self._metrics.flush_s.time():
                count = await asyncio.to_thread(self._buffers[place].write, self._settings.roll_bytes)
            self._metrics.rows.labels(place[0]).inc(count)
            self._metrics.written_count += count

    async def _watch(self, consumer: RecordConsumer) -> None:
        """Ask every second where the topics end."""
        while True:
            with suppress(BrokerUnavailable):
                ends = await consumer.end_offsets(_partitions())
                self._ends = {(topic.base_name, number): end for (topic, number), end in ends.items()}
            await asyncio.sleep(WATCH_INTERVAL_S)

    def _gauges(self) -> dict[str, float]:
        buffered = sum(len(buffer.rows) for buffer in self._buffers.values())
        lag = sum(max(0, end - self._buffers[place].position) for place, end in self._ends.items())
        self._metrics.buffered.set(buffered)
        self._metrics.lag.set(lag)
        return {"lag_records": lag, "rows_buffered": buffered, "rows_written": self._metrics.written_count}


def _partitions() -> list[tuple[Topic, int]]:
    return [(topic, number) for topic in ALL_TOPICS for number in range(topic.partitions)]


def _dead(topic: Topic) -> str:
    return f"{topic.base_name}{DEAD_LETTER_SUFFIX}"
