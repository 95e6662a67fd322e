"""The thread behind a RecordConsumer: the only place that touches its confluent consumer.

It does one job at a time: a poll, a seek, a commit. Without a job for a while it keeps the group membership alive with
its partitions paused. While an async rebalance hook runs on the event loop the thread goes on doing jobs, because the
hook may well ask for a commit; only polls, and the end, wait.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ingest.errors import BrokerUnavailable, ConsumerFailed, OffsetLost
from ingest.kafka.deadletters import DeadLetterWriter
from ingest.kafka.group_offsets import TRANSIENT, commit, committed
from ingest.kafka.jobs import JobThread
from ingest.kafka.offsets import OffsetReader, missing
from ingest.kafka.positions import Batch, Positions
from ingest.kafka.raw import headers_of
from ingest.kafka.received import EARLIEST, END, Received, TopicPartition
from ingest.kafka.settings import KafkaSettings, opened
from schemas import Record, SchemaError, Topic, decode

T = TypeVar("T")
OnAssign = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, int] | None]]
OnRevoke = Callable[[list[TopicPartition]], Awaitable[None]]

REST_AFTER_S = 2.0
"""A caller that has not asked for anything this long is slow: partitions are paused, the membership kept alive."""

_log = structlog.get_logger(__name__)
_SLICE_S = 0.05  # how long a poll may keep other jobs waiting
_RETRY_S = 0.05
_MAX_BATCH_BYTES = 32 << 20
# Waiting does not mend these.
_FINAL = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.UNSUPPORTED_VERSION,
}


@dataclass(frozen=True)
class Plan:
    """What to read: explicit positions, or (positions None) topics shared with the other members of a group."""

    topics: tuple[Topic, ...]
    positions: Mapping[TopicPartition, int] | None = None
    on_assign: OnAssign | None = None
    on_revoke: OnRevoke | None = None


class ConsumerThread:
    """Runs a confluent consumer. `start`, `run`, `poll`, `close` are for the event loop, the rest is for its jobs."""

    def __init__(
        self, kafka: KafkaSettings, config: dict[str, Any], plan: Plan, *, write_dead_letters: bool = True
    ) -> None:
        self._kafka = kafka
        self._config = config
        self._plan = plan
        self._by_name = {topic.full_name(kafka.topic_prefix): topic for topic in plan.topics}
        self._dead_letters = DeadLetterWriter(kafka, config["client.id"]) if write_dead_letters else None
        self._offsets = OffsetReader(kafka, config["client.id"])
        self._jobs = JobThread("kafka-consumer", on_idle=self._idle)
        self._consumer: Consumer | None = None
        self.positions = Positions()
        self._paused: set[TopicPartition] = set()
        self._batch = Batch()
        self._early: deque[Message] = deque()
        self._failure: Exception | None = None  # told once, by the next poll
        self._broken: Exception | None = None  # told by every poll
        self._resting = False
        self._active_at = time.monotonic()

    # For the event loop

    def start(self) -> "asyncio.Future[None]":
        """Starts the thread; done when the consumer has its partitions, or has asked to join its group."""
        self._loop = asyncio.get_running_loop()
        self._jobs.start()
        return self.run(self._begin)

    def run(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Does `work` on the thread."""
        return self._jobs.submit(lambda: self._translated(work))

    def poll(self, max_records: int, timeout_s: float) -> "asyncio.Future[Batch]":
        """Fetches records; done when there are some, or time is up."""
        return self._jobs.submit(lambda: self._translated(lambda: self._poll(max_records, timeout_s)), alone=True)

    def close(self) -> "asyncio.Future[None]":
        """Leaves the group and ends the thread."""
        return self._jobs.submit(self._close, alone=True)

    # Begin and end

    def _begin(self) -> None:
        for name in self._by_name:
            if not self._offsets.partition_count(name):
                raise missing(name)
        self._consumer = consumer = opened(Consumer, self._config)
        if self._plan.positions is None:
            consumer.subscribe(
                list(self._by_name), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            return
        starts = self.resolve(self._plan.positions)
        self.positions.own(starts)
        consumer.assign(self._to_kafka(starts))

    def _close(self) -> None:
        try:
            if self._consumer is not None:
                self._consumer.close()
        finally:
            self._consumer = None
            self._jobs.stop(ConsumerFailed("the consumer is closed"))

    def resolve(self, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Puts numbers in the place of EARLIEST and END."""
        earliest = [key for key, offset in starts.items() if offset == EARLIEST]
        end = [key for key, offset in starts.items() if offset == END]
        return {**starts, **self._look_up(self._offsets.starts, earliest), **self.ends(end)}

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """End offsets. Blocks; for any thread."""
        return self._look_up(self._offsets.ends, partitions)

    def _look_up(
        self,
        ask: Callable[[Iterable[tuple[str, int]]], dict[tuple[str, int], int]],
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, int]:
        by_name = {(topic.full_name(self._kafka.topic_prefix), number): (topic, number) for topic, number in partitions}
        return {by_name[name]: offset for name, offset in ask(by_name).items()}

    # Rebalances (called back inside of the consumer's poll and close)

    def _assigned(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        try:
            starts = self._starts(self._from_kafka(partitions))
            self.positions.own(starts)
            consumer.incremental_assign(self._to_kafka(starts))
            if self._resting:
                consumer.pause(partitions)
        except Exception as failure:  # raised here it would be lost in the library; the polls tell
            self._broken = failure

    def _starts(self, owned: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin: where the hook says, else at the committed offset, else at the first record."""
        hook = self._plan.on_assign
        chosen = dict(self._call_back(hook, owned) or {}) if hook else {}
        committed = self.committed([key for key in owned if key not in chosen])
        begin = self.resolve(dict.fromkeys(committed, EARLIEST))
        starts = {key: chosen[key] for key in owned if key in chosen}
        for key, found in committed.items():
            starts[key] = max(found[0], begin[key]) if found else begin[key]
            if found and found[0] < begin[key]:
                lost = begin[key] - found[0]
                _log.warning("records expired unread", topic=key[0].base_name, partition=key[1], count=lost)
        return self.resolve(starts)

    def _revoked(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        try:
            self._give_away(consumer, partitions)
        except Exception as failure:  # as above
            self._broken = failure

    def _lost(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        """Somebody else has them already. The hook's commits cannot count any more, so its failure is none."""
        try:
            self._give_away(consumer, partitions)
        except Exception as failure:
            _log.warning("partitions were lost to another member of the group", reason=str(failure))

    def _give_away(self, consumer: Consumer, partitions: list[KafkaPartition]) -> None:
        owned = self._from_kafka(partitions)
        try:
            if self._plan.on_revoke:
                self._call_back(self._plan.on_revoke, owned)
        finally:
            self.positions.disown(owned)
            self._drop_fetched(owned)
            self._paused -= set(owned)
            consumer.incremental_unassign(partitions)

    def _call_back(self, hook: Callable[[list[TopicPartition]], Awaitable[T]], owned: list[TopicPartition]) -> T:
        """Runs an async hook on the event loop; does jobs (commits, look-ups) until it is done."""

        async def run() -> T:
            return await hook(owned)

        running = run()
        try:
            future = asyncio.run_coroutine_threadsafe(running, self._loop)
        except RuntimeError:  # the loop was closed without closing us
            running.close()
            raise
        future.add_done_callback(lambda _: self._jobs.nudge())
        while not future.done():
            self._jobs.serve(1.0)
        return future.result()

    # Reading

    def _poll(self, max_records: int, timeout_s: float) -> Batch:
        self._raise_failure()
        self._wake()
        self._batch = batch = Batch()
        try:
            self._fill(batch, max_records, time.monotonic() + timeout_s)
            if self._dead_letters:
                self._dead_letters.flush()
        except Exception:
            self._rewind()
            raise
        if not batch.positions:  # else what was read before the failure is handed out first
            self._raise_failure()
        self._active_at = time.monotonic()
        self._batch = Batch()  # what is handed over belongs to the event loop; epochs guard it from now on
        return batch

    def _fill(self, batch: Batch, max_records: int, deadline: float) -> None:
        while len(batch.records) < max_records and batch.size_bytes < _MAX_BATCH_BYTES:
            message = self._next_message(deadline)
            if message is not None:
                self._take(message)
            elif batch.positions or self._jobs.serve(0) or time.monotonic() >= deadline:
                return
            if self._failure or self._broken:
                return

    def _rewind(self) -> None:
        """Makes as if the batch at hand had not been read: no position may pass a record that is nowhere."""
        owned = self.positions.owned()
        try:
            self.seek({key: owned[key] for key in self._batch.positions if key in owned})
        except Exception as failure:
            self._broken = failure
            raise

    def _raise_failure(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _next_message(self, deadline: float) -> Message | None:
        if self._early:
            return self._early.popleft()
        if self._batch.positions:
            return self._open().poll(0)  # something is there: take what else has arrived, do not wait
        return self._open().poll(max(0.0, min(_SLICE_S, deadline - time.monotonic())))

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._note(error, message)
            return
        topic, number, offset = self._by_name[message.topic() or ""], message.partition() or 0, message.offset() or 0
        key = (topic, number)
        # An end-of-partition event carries the offset behind the last record and behind transaction markers.
        after = offset if error is not None else offset + 1
        if error is not None and after == self.positions.offset(key):
            return  # as known before
        self._batch.epochs[key] = self.positions.epoch(key)
        self._batch.positions[key] = after
        value = message.value()
        if error is not None or (value is None and topic.cleanup == "compact"):
            return  # nothing to hand out: the end, or a tombstone with which somebody deleted the key
        try:
            self._batch.records.append(_received(topic, message, value))
            self._batch.size_bytes += len(value or b"")
        except (SchemaError, UnicodeDecodeError) as reason:
            _log.warning("dead letter", topic=topic.base_name, partition=number, offset=offset, reason=str(reason))
            if self._dead_letters:
                self._dead_letters.add(topic, message, str(reason))

    def _note(self, error: KafkaError, message: Message) -> None:
        """An event of the consumer. Most mend themselves; the others end the reading."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            where = f"{message.topic()}, partition {message.partition()}: offset {message.offset()}"
            self._failure = OffsetLost(f"{where} is not in the log (expired, or the log was reset): choose a new start")
        elif error.fatal() or error.code() in _FINAL:
            self._broken = KafkaException(error)
        else:
            _log.debug("kafka consumer", error=error.name(), message=error.str())

    # Keeping the membership while the caller is busy

    def _idle(self) -> None:
        if self._consumer is None or self._plan.positions is not None:
            return
        if time.monotonic() - self._active_at < REST_AFTER_S:
            return
        try:
            self._rest(self._consumer)
        except Exception as failure:  # nobody waits for this; the polls tell
            self._broken = failure

    def _rest(self, consumer: Consumer) -> None:
        if not self._resting:
            self._resting = True
            consumer.pause(self._to_kafka(self.positions.owned()))
        message = consumer.poll(0)
        if message is not None:
            self._early.append(message)

    def _wake(self) -> None:
        if self._resting:
            self._resting = False
            self._open().resume(self._to_kafka(self.positions.owned().keys() - self._paused))

    def _drop_fetched(self, partitions: Iterable[TopicPartition]) -> None:
        """Forgets what was fetched of these partitions and not handed out."""
        self._batch.forget(partitions)
        names = {(topic.full_name(self._kafka.topic_prefix), number) for topic, number in partitions}
        self._early = deque(one for one in self._early if (one.topic(), one.partition()) not in names)

    # Other jobs

    def seek(self, starts: Mapping[TopicPartition, int]) -> None:
        """Goes on elsewhere in owned partitions."""
        foreign = starts.keys() - self.positions.owned().keys()
        if foreign:
            names = ", ".join(f"{topic.base_name}/{number}" for topic, number in foreign)
            raise ConsumerFailed(f"cannot seek {names}: not assigned to this consumer")
        resolved = self.resolve(starts)
        for partition in self._to_kafka(resolved):
            self._seek_one(partition)
        self.positions.own(resolved)
        self._drop_fetched(resolved)

    def _seek_one(self, partition: KafkaPartition) -> None:
        try:
            self._open().seek(partition)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise
            # Not being fetched: it was assigned this very moment, or its old offset is not in the log.
            self._open().incremental_unassign([partition])
            self._open().incremental_assign([partition])

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stops fetching some partitions."""
        owned = self.positions.owned().keys() & set(partitions)
        self._paused |= owned
        self._open().pause(self._to_kafka(owned))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetches them again."""
        owned = self.positions.owned().keys() & set(partitions)
        self._paused -= owned
        if not self._resting:
            self._open().resume(self._to_kafka(owned))

    def commit(self, positions: Mapping[TopicPartition, int], metadata: str) -> None:
        """Commits offsets of the group, each with this note."""
        commit(self._open(), self._to_kafka(positions, metadata))

    def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str] | None]:
        """The group's offsets and their notes; None where there is none."""
        asked = list(dict.fromkeys(partitions))
        return dict(zip(asked, committed(self._open(), self._to_kafka(asked)), strict=True))

    def group_metadata(self) -> object:
        """What a transaction needs in order to commit offsets of this group."""
        return self._open().consumer_group_metadata()

    # Small things

    def _open(self) -> Consumer:
        if self._consumer is None:
            raise ConsumerFailed("the consumer is closed")
        return self._consumer

    def _translated(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except KafkaException as failure:
            error: KafkaError = failure.args[0]
            kind = BrokerUnavailable if error.code() in TRANSIENT else ConsumerFailed
            raise kind(f"Kafka at {self._kafka.bootstrap_servers}: {error.str()} ({error.name()})") from failure

    def _to_kafka(
        self, partitions: Mapping[TopicPartition, int] | Iterable[TopicPartition], metadata: str = ""
    ) -> list[KafkaPartition]:
        offsets = partitions if isinstance(partitions, Mapping) else dict.fromkeys(partitions, OFFSET_INVALID)
        prefix = self._kafka.topic_prefix
        return [
            KafkaPartition(topic.full_name(prefix), number, offset, metadata)
            for (topic, number), offset in offsets.items()
        ]

    def _from_kafka(self, partitions: list[KafkaPartition]) -> list[TopicPartition]:
        return [(self._by_name[partition.topic], partition.partition) for partition in partitions]


def _received(topic: Topic, message: Message, value: bytes | None) -> Received[Record]:
    return Received(
        topic=topic,
        partition=message.partition() or 0,
        offset=message.offset() or 0,
        key=(message.key() or b"").decode(),
        record=decode(topic.record, value or b""),
        headers={name: data.decode(errors="replace") for name, data in headers_of(message)},
        at_us=message.timestamp()[1] * 1000,
    )
