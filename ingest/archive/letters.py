"""Dead letters as rows: the records that nobody could read, with the reason and where they came from."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ingest.archive.columns import DEAD_LETTERS, origin_arrays
from ingest.errors import ConsumerFailed
from ingest.kafka.deadletters import ORIGIN as ORIGIN_HEADER
from ingest.kafka.deadletters import REASON as REASON_HEADER
from ingest.kafka.raw import reader_config
from ingest.kafka.settings import KafkaSettings
from schemas import Topic

PARTITION = 0
"""Dead-letter topics have one partition."""
_BATCH = 500
_POLL_S = 0.3


@dataclass(frozen=True)
class Letter:
    """One dead letter."""

    topic: Topic
    """The topic whose record it was."""
    partition: int
    offset: int
    key: str
    at_us: int
    origin_partition: int | None
    origin_offset: int | None
    reason: str
    value: bytes
    headers: dict[str, str]


class LetterReader:
    """Reads the dead-letter topics from given offsets on."""

    def __init__(self, kafka: KafkaSettings, positions: Mapping[Topic, int]) -> None:
        self._by_name = {topic.dead_letters(kafka.topic_prefix): topic for topic in positions}
        self._consumer = Consumer(reader_config(kafka, "forgestream-archiver"))
        self._consumer.assign(
            [
                TopicPartition(topic.dead_letters(kafka.topic_prefix), PARTITION, position)
                for topic, position in positions.items()
            ]
        )

    async def poll(self) -> list[Letter]:
        """What has come; empty when nothing has within a moment.

        Raises:
            ConsumerFailed: reading cannot go on.
        """
        messages = await asyncio.to_thread(self._consumer.consume, _BATCH, _POLL_S)
        return [self._letter(message) for message in messages if self._is_record(message)]

    async def close(self) -> None:
        """Frees the consumer."""
        await asyncio.to_thread(self._consumer.close)

    def _is_record(self, message: Message) -> bool:
        error = message.error()
        if error is None:
            return True
        if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise ConsumerFailed(f"{message.topic()}: {error.str()}: restart the archiver")
        return False

    def _letter(self, message: Message) -> Letter:
        headers = {name: _text(value) for name, value in message.headers() or []}
        partition, offset = _origin(headers.get(ORIGIN_HEADER, ""))
        return Letter(
            topic=self._by_name[message.topic() or ""],
            partition=message.partition() or 0,
            offset=message.offset() or 0,
            key=_text(message.key()),
            at_us=message.timestamp()[1] * 1000,
            origin_partition=partition,
            origin_offset=offset,
            reason=headers.get(REASON_HEADER, ""),
            value=message.value() or b"",
            headers=headers,
        )


def to_table(rows: Sequence[Letter]) -> pa.Table:
    """Dead letters as a table with DEAD_LETTERS."""
    arrays = [
        pa.array([row.topic.base_name for row in rows], pa.string()),
        pa.array([row.origin_partition for row in rows], pa.int32()),
        pa.array([row.origin_offset for row in rows], pa.int64()),
        pa.array([row.reason for row in rows], pa.string()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([list(row.headers.items()) for row in rows], pa.map_(pa.string(), pa.string())),
    ]
    return pa.Table.from_arrays([*arrays, *origin_arrays(rows)], schema=DEAD_LETTERS)


def _origin(header: str) -> tuple[int | None, int | None]:
    """Partition and offset of `topic/partition/offset`; None where somebody else wrote the letter."""
    parts = header.rsplit("/", 2)
    if len(parts) != 3 or not parts[1].isdecimal() or not parts[2].isdecimal():
        return None, None
    return int(parts[1]), int(parts[2])


def _text(data: str | bytes | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""
