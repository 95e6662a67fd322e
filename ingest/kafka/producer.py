"""Records into the log, acknowledged: idempotent, `acks=all`, keyed, compressed.

One librdkafka producer, one thread that only collects acknowledgements and wakes the event loop once for each bundle
of them. What is in flight is bounded in records and bytes: `send` waits for room, `send_soon` refuses.
"""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ingest.errors import DeliveryError, ProducerFull
from ingest.kafka.partitions import PARTITIONER
from ingest.kafka.settings import MAX_RECORD_BYTES, KafkaSettings, opened
from schemas import Record, Topic, encode

_log = structlog.get_logger(__name__)
_POLL_S = 0.1


@dataclass(frozen=True)
class Delivery:
    """Where the log put a record."""

    partition: int
    offset: int


class RecordProducer:
    """Sends records and tells when the log has them. Belongs to the event loop that starts it.

    Args:
        kafka: How to reach the brokers.
        client_id: Name of this client in the brokers' logs and metrics.
        linger_ms: How long a record may wait for company.
        delivery_timeout_s: When a record that is not acknowledged counts as failed.
        max_in_flight: Most records that may wait for acknowledgement.
        max_in_flight_bytes: Most bytes of values that may.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        client_id: str,
        *,
        linger_ms: float = 1.0,
        delivery_timeout_s: float = 120.0,
        max_in_flight: int = 10_000,
        max_in_flight_bytes: int = 64 << 20,
    ) -> None:
        self._kafka = kafka
        self._config = producer_config(kafka, client_id) | {
            "linger.ms": linger_ms,
            "delivery.timeout.ms": int(delivery_timeout_s * 1000),
            # Ours are the bounds; the library's must not be met first.
            "queue.buffering.max.messages": max_in_flight + 1,
            "queue.buffering.max.kbytes": 2 * max_in_flight_bytes // 1024 + 2 * MAX_RECORD_BYTES // 1024,
        }
        self._max_in_flight = max_in_flight
        self._max_bytes = max_in_flight_bytes
        self._producer: Producer | None = None
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._done: list[_Outcome] = []
        self._stopping = threading.Event()

    async def start(self) -> None:
        """Makes the client and its thread. Does not need a broker yet, but gives it a second to answer."""
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()  # fair: records are queued in the order of their `send`
        self._room = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._producer = opened(Producer, self._config)
        self._thread = threading.Thread(target=self._collect, name="kafka-deliveries", daemon=True)
        self._thread.start()
        await asyncio.to_thread(meet, self._producer)

    async def close(self, timeout_s: float = 10.0) -> None:
        """Waits for what is in flight, then ends. What is not acknowledged by then fails with DeliveryError."""
        if self._producer is None:
            return
        try:
            await self.flush(timeout_s)
        except DeliveryError as error:
            _log.warning("records given up at close", count=self._in_flight, reason=str(error))
            self._producer.purge()
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)
        self._settle(self._swap())
        self._producer = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def in_flight(self) -> int:
        """Records that wait for acknowledgement."""
        return self._in_flight

    async def send(self, topic: Topic, record: Record, *, headers: Mapping[str, str] | None = None) -> Delivery:
        """Sends a record; returns when the log has it. Waits first while too much is in flight.

        Raises:
            DeliveryError: not acknowledged in time, or refused.
            SchemaError: the record does not fit the topic.
        """
        value = encode(record)
        async with self._turn:
            while not self._has_room(len(value)):
                self._room.clear()
                await self._room.wait()
            future = self._enqueue(topic, topic.key_of(record), value, headers)
        return await future

    def send_soon(
        self, topic: Topic, record: Record, *, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Delivery]:
        """Queues a record and returns at once; the future ends when the log has it.

        Records of one key arrive in the order of these calls.

        Raises:
            ProducerFull: too much is in flight; nothing was queued.
            DeliveryError: refused, for example too large.
            SchemaError: the record does not fit the topic.
        """
        value = encode(record)
        if not self._has_room(len(value)):
            raise ProducerFull(
                f"{topic.base_name}: {self._in_flight} records ({self._in_flight_bytes} bytes) wait for "
                f"{self._kafka.bootstrap_servers}: is the broker up?"
            )
        return self._enqueue(topic, topic.key_of(record), value, headers)

    async def flush(self, timeout_s: float = 10.0) -> None:
        """Waits until nothing is in flight.

        Raises:
            DeliveryError: something still is after `timeout_s`.
        """
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            raise DeliveryError(
                f"{self._in_flight} records not acknowledged by {self._kafka.bootstrap_servers} within {timeout_s:g} s"
            ) from None

    def _has_room(self, size: int) -> bool:
        if self._in_flight == 0:
            return True  # one record larger than the bound must not wait for ever
        return self._in_flight < self._max_in_flight and self._in_flight_bytes + size <= self._max_bytes

    def _enqueue(
        self, topic: Topic, key: str, value: bytes, headers: Mapping[str, str] | None
    ) -> asyncio.Future[Delivery]:
        if self._producer is None:
            raise DeliveryError("the producer is not started, or closed")
        future: asyncio.Future[Delivery] = self._loop.create_future()
        name = topic.full_name(self._kafka.topic_prefix)
        try:
            self._producer.produce(
                name,
                value,
                key,
                on_delivery=partial(self._acknowledged, future, len(value)),
                headers=dict(headers) if headers else None,
            )
        except (KafkaException, BufferError) as error:
            raise DeliveryError(refused(name, key, len(value), error)) from error
        self._in_flight += 1
        self._in_flight_bytes += len(value)
        self._idle.clear()
        return future

    def _collect(self) -> None:
        """The thread: acknowledgements are gathered during one poll and handed over in one wake-up."""
        assert self._producer is not None
        while not self._stopping.is_set():
            self._producer.poll(_POLL_S)
            if self._done:
                try:
                    self._loop.call_soon_threadsafe(self._settle, self._swap())
                except RuntimeError:
                    return  # the loop was closed without closing us
        self._producer.flush(0)

    def _acknowledged(
        self, future: asyncio.Future[Delivery], size: int, error: KafkaError | None, message: Message
    ) -> None:
        if error is None:
            self._done.append(_Outcome(future, size, Delivery(message.partition() or 0, message.offset() or 0)))
            return
        what = f"{message.topic()}: record {_text(message.key())!r} not acknowledged: {error.str()}"
        mend = "restart the service" if error.fatal() else f"is the broker at {self._kafka.bootstrap_servers} up?"
        self._done.append(_Outcome(future, size, DeliveryError(f"{what}: {mend}")))

    def _swap(self) -> "list[_Outcome]":
        done, self._done = self._done, []
        return done

    def _settle(self, done: "list[_Outcome]") -> None:
        for outcome in done:
            self._in_flight -= 1
            self._in_flight_bytes -= outcome.size
            if outcome.future.done():
                continue  # its caller was cancelled
            if isinstance(outcome.result, Delivery):
                outcome.future.set_result(outcome.result)
            else:
                outcome.future.set_exception(outcome.result)
        self._room.set()
        if self._in_flight == 0:
            self._idle.set()


@dataclass(frozen=True)
class _Outcome:
    """How it went with one record."""

    future: asyncio.Future[Delivery]
    size: int
    result: Delivery | DeliveryError


def producer_config(kafka: KafkaSettings, client_id: str) -> dict[str, Any]:
    """What every producer of the project has in common."""
    return kafka.client(
        **{
            "client.id": client_id,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "zstd",
            "partitioner": PARTITIONER,
            "message.max.bytes": MAX_RECORD_BYTES,
        }
    )


def meet(producer: Producer) -> None:
    """Connects a new producer, when a broker is there. Blocks, at most a second.

    A record that is produced while the library is still connecting can make it miss its turn to ask for the id of the
    idempotent producer; it then asks again half a second later.
    """
    with contextlib.suppress(KafkaException):
        producer.list_topics(timeout=1.0)


def refused(topic: str, key: str, size: int, error: Exception) -> DeliveryError:
    """The error for a record that librdkafka did not even queue."""
    reason = error.args[0] if error.args else error
    if isinstance(reason, KafkaError) and reason.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        mend = f"{size} bytes, at most {MAX_RECORD_BYTES} fit: put large payloads on blobs.v1"
        return DeliveryError(f"{topic}: record {key!r} is too large: {mend}")
    return DeliveryError(
        f"{topic}: record {key!r} refused: {reason.str() if isinstance(reason, KafkaError) else reason}"
    )


def _text(key: bytes | str | None) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else key or ""
