"""Records and consumed offsets that appear together or not at all.

librdkafka's transactional calls block, and one of them has been seen never to return after the death of a broker. So
each runs on a thread of this module under a watchdog: a step that does not end makes TransactionStalled, never a hang.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from ingest.errors import Fenced, TransactionFailed, TransactionStalled
from ingest.kafka.consumer import RecordConsumer
from ingest.kafka.jobs import JobThread
from ingest.kafka.producer import meet, producer_config, refused
from ingest.kafka.received import TopicPartition
from ingest.kafka.settings import KafkaSettings, opened
from schemas import Record, Topic, encode

T = TypeVar("T")
_WATCHDOG_MARGIN_S = 5.0
_RETRY_S = 0.02
_FLUSH_S = 5.0
_FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class Transaction:
    """What may be done inside of one transaction."""

    def __init__(self, producer: "TransactionalProducer") -> None:
        self._producer = producer

    def send(self, topic: Topic, record: Record, headers: Mapping[str, str] | None = None) -> None:
        """Adds a record; whether the log took it shows when the transaction commits.

        Raises:
            DeliveryError: refused, for example too large.
            SchemaError: the record does not fit the topic.
        """
        self._producer._produce(topic, record, headers)

    async def send_offsets(self, consumer: RecordConsumer, positions: Mapping[TopicPartition, int]) -> None:
        """Adds the commit of these next offsets for the consumer's group.

        Raises:
            TransactionFailed: refused, for example because the partition was given away.
            TransactionStalled: no end of it.
        """
        await self._producer._send_offsets(await consumer.group_metadata(), positions)


class TransactionalProducer:
    """A producer whose transactions are atomic, and which fences older ones with the same id.

    Args:
        kafka: How to reach the brokers.
        transactional_id: Who this is, over restarts; the topic prefix is put before it.
        timeout_s: When the broker undoes an open transaction, and how long one step may take.
    """

    def __init__(self, kafka: KafkaSettings, transactional_id: str, *, timeout_s: float = 30.0) -> None:
        self._kafka = kafka
        self._id = f"{kafka.topic_prefix}{transactional_id}"
        self._timeout_s = timeout_s
        self._config = producer_config(kafka, self._id) | {
            "transactional.id": self._id,
            "transaction.timeout.ms": int(timeout_s * 1000),
            # A transaction that follows another closely is refused until the first one's markers are written; at the
            # default of 100 ms between attempts that makes every transaction last that long.
            "retry.backoff.ms": 2,
            "retry.backoff.max.ms": 50,
            "linger.ms": 1,
        }
        self._jobs = JobThread("kafka-transactions")
        self._producer: Producer | None = None
        self._lost: TransactionFailed | None = None
        self._busy = asyncio.Lock()

    async def start(self) -> None:
        """Takes over the id: open transactions of older holders are undone, the holders are fenced.

        Raises:
            TransactionStalled: the brokers do not answer.
        """
        self._producer = producer = opened(Producer, self._config)
        self._jobs.start()
        try:
            await asyncio.to_thread(meet, producer)
            await self._step("start", producer.init_transactions)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Ends the thread. An open transaction is undone by its own context manager before."""
        if self._producer is not None:
            self._producer = None
            self._jobs.stop(self._not_open())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """One transaction: committed at the end of the block, undone when the block raises. One at a time.

        Raises:
            TransactionFailed: undone by the log or the library; do the work again.
            TransactionStalled: a step did not end; make a new producer, then see in the log what took effect.
            Fenced: somebody else has the id now.
        """
        async with self._busy:
            producer, is_open = self._open(), False

            def begin(left_s: float) -> None:
                nonlocal is_open
                producer.begin_transaction()
                is_open = True

            def commit(left_s: float) -> None:
                nonlocal is_open
                producer.commit_transaction(left_s)
                is_open = False

            try:
                await self._step("begin", begin)
                yield Transaction(self)
                await self._step("commit", commit)
            except BaseException:
                if is_open:
                    await self._abort(producer)
                raise

    def _open(self) -> Producer:
        if self._lost is not None:
            raise self._lost
        if self._producer is None:
            raise self._not_open()
        return self._producer

    def _not_open(self) -> TransactionFailed:
        return TransactionFailed(f"transactional producer {self._id} is not started, or closed")

    def _produce(self, topic: Topic, record: Record, headers: Mapping[str, str] | None) -> None:
        value, key = encode(record), topic.key_of(record)
        name = topic.full_name(self._kafka.topic_prefix)
        try:
            self._open().produce(name, value, key, headers=dict(headers) if headers else None)
        except (KafkaException, BufferError) as error:
            raise refused(name, key, len(value), error) from error

    async def _send_offsets(self, group: Any, positions: Mapping[TopicPartition, int]) -> None:
        prefix = self._kafka.topic_prefix
        offsets = [
            KafkaPartition(topic.full_name(prefix), number, offset) for (topic, number), offset in positions.items()
        ]
        producer = self._open()
        await self._step("offsets", lambda left_s: producer.send_offsets_to_transaction(offsets, group, left_s))

    async def _abort(self, producer: Producer) -> None:
        """Undoes what is open. When even that fails the broker does it, at the transaction's timeout."""

        def abort(left_s: float) -> None:
            # What was sent must have reached the log first. An abort that overtakes it, right behind another
            # transaction's commit, is an invalid request to the broker, and a fatal error to the library.
            producer.flush(min(left_s, _FLUSH_S))
            producer.abort_transaction(left_s)

        if self._lost is None:
            try:
                await self._step("abort", abort)
            except TransactionFailed as failure:
                self._lost = self._lost or failure

    async def _step(self, what: str, call: Callable[[float], T]) -> T:
        """One blocking call on the thread, repeated while the library says so, under the watchdog.

        `call` gets the seconds that are left. A cancelled caller still waits for it: the producer's state must be
        known before anything else is done.
        """
        deadline = time.monotonic() + self._timeout_s
        watchdog = deadline + _WATCHDOG_MARGIN_S
        future = self._jobs.submit(lambda: self._repeat(what, call, deadline))
        cancelled: asyncio.CancelledError | None = None
        while not future.done() and time.monotonic() < watchdog:
            try:
                await asyncio.wait([future], timeout=watchdog - time.monotonic())
            except asyncio.CancelledError as error:
                cancelled = error
        if not future.done():
            future.cancel()
            self._lost = TransactionStalled(
                f"transaction of {self._id}: {what} did not end within {self._timeout_s + _WATCHDOG_MARGIN_S:g} s: "
                "restart with a new producer"
            )
            self._jobs.stop(self._lost)
            raise self._lost
        result = future.result()
        if cancelled is not None:
            raise cancelled
        return result

    def _repeat(self, what: str, call: Callable[[float], T], deadline: float) -> T:
        while True:
            try:
                return call(max(0.1, deadline - time.monotonic()))
            except KafkaException as failure:
                error: KafkaError = failure.args[0]
                if not error.retriable() or time.monotonic() > deadline:
                    raise self._failure(what, error) from failure
                time.sleep(_RETRY_S)

    def _failure(self, what: str, error: KafkaError) -> TransactionFailed:
        where = f"transaction of {self._id}: {what}: {error.str()} ({error.name()})"
        if error.code() in _FENCED:
            self._lost = Fenced(f"{where}: a newer producer took over, this one must stop")
        elif error.fatal():
            self._lost = TransactionStalled(f"{where}: restart with a new producer")
        elif error.retriable():
            self._lost = TransactionStalled(f"{where}: is Kafka at {self._kafka.bootstrap_servers} up?")
        else:
            return TransactionFailed(f"{where}: nothing of it was kept, do it again")
        return self._lost
