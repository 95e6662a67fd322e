"""Where a consumer is: the next offset of each partition that it owns.

Written by the consumer's thread (assignments, seeks) and by the event loop (records handed out). Each assignment or
seek of a partition begins a new epoch of it; what was fetched in an older epoch no longer counts.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ingest.kafka.received import Received, TopicPartition


@dataclass
class Batch:
    """What one poll brought, not handed out yet."""

    records: list[Received[Any]] = field(default_factory=list)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    """Next offset of each partition that moved."""
    epochs: dict[TopicPartition, int] = field(default_factory=dict)
    size_bytes: int = 0

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drops all that is of these partitions."""
        gone = self.positions.keys() & set(partitions)
        if gone:
            self.records = [one for one in self.records if (one.topic, one.partition) not in gone]
            for partition in gone:
                del self.positions[partition], self.epochs[partition]


class Positions:
    """The positions of the partitions that are owned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offsets: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}

    def own(self, starts: Mapping[TopicPartition, int]) -> None:
        """Takes partitions over, or moves them, to these next offsets."""
        with self._lock:
            for partition, offset in starts.items():
                self._epochs[partition] = self._epochs.get(partition, 0) + 1
                self._offsets[partition] = offset

    def disown(self, partitions: Iterable[TopicPartition]) -> None:
        """Gives partitions away."""
        with self._lock:
            for partition in partitions:
                self._epochs[partition] = self._epochs.get(partition, 0) + 1
                self._offsets.pop(partition, None)

    def epoch(self, partition: TopicPartition) -> int:
        """The partition's present epoch."""
        return self._epochs.get(partition, 0)

    def offset(self, partition: TopicPartition) -> int | None:
        """The partition's next offset; None when it is not owned."""
        return self._offsets.get(partition)

    def claim(self, batch: Batch) -> list[Received[Any]]:
        """Moves on by a batch; its records, without those of partitions that were sought or given away since."""
        with self._lock:
            stale = [partition for partition, epoch in batch.epochs.items() if self._epochs.get(partition) != epoch]
            batch.forget(stale)
            self._offsets.update(batch.positions)
        return batch.records

    def owned(self) -> dict[TopicPartition, int]:
        """A copy: partition to next offset."""
        with self._lock:
            return dict(self._offsets)
