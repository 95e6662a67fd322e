"""What a consumer hands out."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from schemas import Record, Topic

R = TypeVar("R", bound=Record)

TopicPartition = tuple[Topic, int]
"""A topic of the registry and a partition of it."""

EARLIEST = OFFSET_BEGINNING
"""The first record that the log still holds."""
END = OFFSET_END
"""What is written after the consumer's start."""


@dataclass(frozen=True, slots=True)
class Received(Generic[R]):
    """One record and where it came from."""

    topic: Topic
    partition: int
    offset: int
    key: str
    record: R
    headers: dict[str, str]
    at_us: int
    """The log's time stamp, epoch µs (whole milliseconds)."""
