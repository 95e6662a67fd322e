"""Records out of the log: `read_committed`, explicit starts, explicit commits."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ingest.errors import BrokerUnavailable, ConsumerFailed
from ingest.kafka.consumer_thread import ConsumerThread, OnAssign, OnRevoke, Plan
from ingest.kafka.group_offsets import REQUEST_TIMEOUT_S
from ingest.kafka.positions import Batch
from ingest.kafka.raw import reader_config
from ingest.kafka.received import EARLIEST, END, Received, TopicPartition
from ingest.kafka.settings import KafkaSettings
from schemas import Topic

__all__ = ["EARLIEST", "END", "Received", "RecordConsumer", "TopicPartition", "read_all"]

_PATIENCE_S = 30.0


class RecordConsumer:
    """Reads records of one or more topics. Made by `subscribe` or `assign`; belongs to the loop that starts it.

    A record that cannot be decoded goes to the topic's dead letters and is passed over. One poll runs at a time;
    everything else may be called beside them. All methods raise ConsumerFailed after `close`, and
    BrokerUnavailable when the brokers do not answer in time.
    """

    def __init__(self, thread: ConsumerThread, kafka: KafkaSettings, *, has_group: bool) -> None:
        self._thread = thread
        self._kafka = kafka
        self._has_group = has_group
        self._polling: asyncio.Future[Batch] | None = None
        self._turn = asyncio.Lock()
        self._started = False

    @classmethod
    def subscribe(
        cls,
        kafka: KafkaSettings,
        topics: Sequence[Topic],
        *,
        group: str,
        on_assign: OnAssign | None = None,
        on_revoke: OnRevoke | None = None,
    ) -> "RecordConsumer":
        """A member of a group: the brokers share the partitions out (KIP-848).

        A partition begins where `on_assign` says, else at the group's committed offset, else at its first record.
        `on_revoke` runs before a partition is given away, while commits for it still count; both hooks run on the
        event loop, may use this consumer (not poll it), and an error of theirs comes out of the next poll.
        """
        name = f"{kafka.topic_prefix}{group}"
        config = reader_config(kafka, f"forgestream-{group}", name) | {"group.protocol": "consumer"}
        plan = Plan(tuple(topics), None, on_assign, on_revoke)
        return cls(ConsumerThread(kafka, config, plan), kafka, has_group=True)

    @classmethod
    def assign(
        cls,
        kafka: KafkaSettings,
        positions: Mapping[TopicPartition, int],
        *,
        group: str | None = None,
        write_dead_letters: bool = True,
    ) -> "RecordConsumer":
        """A reader of its own, from explicit offsets, EARLIEST or END (what comes after `start` has returned).

        With a `group` it can commit offsets, for others to see; nobody else is kept from reading.
        """
        name = f"{kafka.topic_prefix}{group}" if group else None
        config = reader_config(kafka, f"forgestream-{group or 'reader'}", name)
        topics = tuple(dict.fromkeys(topic for topic, _ in positions))
        plan = Plan(topics, dict(positions))
        thread = ConsumerThread(kafka, config, plan, write_dead_letters=write_dead_letters)
        return cls(thread, kafka, has_group=bool(group))

    async def start(self) -> None:
        """Joins the group, or takes its positions.

        Raises:
            TopicMismatch: a topic does not exist.
            BrokerUnavailable: no answer.
        """
        self._started = True
        try:
            await self._thread.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leaves the group (after `on_revoke`) and frees everything. Commits nothing by itself."""
        if self._started:
            self._started = False
            if self._polling is not None:
                self._polling.add_done_callback(_ignore)  # a cancelled poll: nobody asks any more
            await self._thread.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def poll(self, max_records: int = 500, timeout_s: float = 0.2) -> list[Received[Any]]:
        """Up to `max_records` records, as soon as there are some; empty when there are none within `timeout_s`.

        May also come back early and empty when a position moved without a record. A cancelled poll loses nothing:
        the next one returns what it had fetched.

        Raises:
            OffsetLost: a position is not in the log.
            DeliveryError: a dead letter could not be written; the position stays before it.
            ConsumerFailed: reading cannot go on.
        """
        async with self._turn:
            if self._polling is None:
                self._polling = self._thread.poll(max_records, timeout_s)
            await asyncio.wait([self._polling])
            done, self._polling = self._polling, None
            return self._thread.positions.claim(done.result())

    def positions(self) -> dict[TopicPartition, int]:
        """The next offset that poll will return, of each owned partition.

        Moves behind transaction markers too: at the end of a partition it equals the end offset.
        """
        return self._thread.positions.owned()

    @property
    def assignment(self) -> set[TopicPartition]:
        """The partitions that are owned now."""
        return set(self._thread.positions.owned())

    async def commit(self, positions: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commits the group's next offsets, each with a note of at most 4 kB.

        Raises:
            ConsumerFailed: refused, for example because the partition was given away; or there is no group.
        """
        if not self._has_group:
            raise ConsumerFailed("a commit needs a group: give one to RecordConsumer.assign")
        wanted = dict(positions)
        await self._within(self._thread.run(lambda: self._thread.commit(wanted, metadata)), "commit")

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str] | None]:
        """The group's committed offset and note of each partition; None where nothing was committed."""
        wanted = list(partitions)
        return await self._within(self._thread.run(lambda: self._thread.committed(wanted)), "read committed offsets")

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last committed record of each partition."""
        return await asyncio.to_thread(self._thread.ends, list(partitions))

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Goes on at other offsets (numbers, EARLIEST or END) of owned partitions."""
        wanted = dict(positions)
        await self._within(self._thread.run(lambda: self._thread.seek(wanted)), "seek")

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls that begin after this bring nothing of these partitions."""
        wanted = list(partitions)
        self._thread.run(lambda: self._thread.pause(wanted)).add_done_callback(_ignore)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Undoes `pause`."""
        wanted = list(partitions)
        self._thread.run(lambda: self._thread.resume(wanted)).add_done_callback(_ignore)

    async def group_metadata(self) -> Any:
        """What TransactionalProducer needs to commit offsets of this group."""
        return await self._within(self._thread.run(self._thread.group_metadata), "read group metadata")

    async def _within(self, future: "asyncio.Future[Any]", what: str) -> Any:
        try:
            return await asyncio.wait_for(future, REQUEST_TIMEOUT_S + 5)
        except TimeoutError:
            raise BrokerUnavailable(
                f"no answer from Kafka at {self._kafka.bootstrap_servers} ({what}): is it up?"
            ) from None


async def read_all(kafka: KafkaSettings, topic: Topic) -> list[Received[Any]]:
    """Every record of a topic that is committed now, up to the end offsets at the call. Unreadable ones are left out.

    Raises:
        TopicMismatch: the topic does not exist.
        BrokerUnavailable: the brokers do not answer, or stop to.
    """
    positions = {(topic, number): EARLIEST for number in range(topic.partitions)}
    found: list[Received[Any]] = []
    async with RecordConsumer.assign(kafka, positions, write_dead_letters=False) as consumer:
        ends = await consumer.end_offsets(positions)
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while any(consumer.positions()[key] < end for key, end in ends.items()):
            before = consumer.positions()
            found += await consumer.poll(5_000)
            if consumer.positions() != before:
                deadline = asyncio.get_running_loop().time() + _PATIENCE_S
            elif asyncio.get_running_loop().time() > deadline:
                raise BrokerUnavailable(f"no answer from Kafka at {kafka.bootstrap_servers}: is it up?")
    return [one for one in found if one.offset < ends[one.topic, one.partition]]


def _ignore(future: "asyncio.Future[Any]") -> None:
    """Looks at the outcome, so that asyncio does not complain that nobody did."""
    if not future.cancelled():
        future.exception()
