"""Reads a topic as it is, undecoded, from its beginning to its present end. Blocking."""

import time

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from ingest.errors import BrokerUnavailable
from ingest.kafka.offsets import OffsetReader, missing
from ingest.kafka.settings import KafkaSettings, opened

_PATIENCE_S = 30.0


def read_topic(kafka: KafkaSettings, name: str) -> list[Message]:
    """All messages of a topic that are committed now, partition by partition in order.

    Raises:
        BrokerUnavailable: the brokers do not answer.
        TopicMismatch: the topic does not exist.
    """
    offsets = OffsetReader(kafka, "forgestream-reader")
    count = offsets.partition_count(name)
    if not count:
        raise missing(name)
    partitions = [(name, number) for number in range(count)]
    ends, starts = offsets.ends(partitions), offsets.starts(partitions)
    open_ends = {number: end for (_, number), end in ends.items() if end > starts[name, number]}
    consumer = opened(Consumer, reader_config(kafka, "forgestream-reader"))
    try:
        consumer.assign([TopicPartition(name, number, starts[name, number]) for number in open_ends])
        return _read_until(consumer, kafka, open_ends)
    finally:
        consumer.close()


def reader_config(kafka: KafkaSettings, client_id: str, group: str | None = None) -> dict[str, object]:
    """What every reader of the project has in common."""
    return kafka.client(
        **{
            "client.id": client_id,
            "group.id": group or "forgestream-none",  # the library insists on one; without commits it never exists
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # Every start is explicit. An offset that the log does not hold is an error, never a silent jump.
            "auto.offset.reset": "error",
            # Tells the offset behind transaction markers, which are no records.
            "enable.partition.eof": True,
            # How long fetching rests when the local queue is full; the default of a second is a stall.
            "fetch.queue.backoff.ms": 10,
        }
    )


def headers_of(message: Message) -> list[tuple[str, bytes]]:
    """The message's headers; a header without a value has an empty one."""
    headers = message.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, value.encode() if isinstance(value, str) else value or b"") for name, value in pairs]


def _read_until(consumer: Consumer, kafka: KafkaSettings, ends: dict[int, int]) -> list[Message]:
    found: list[Message] = []
    deadline = time.monotonic() + _PATIENCE_S
    while ends:
        message = consumer.poll(0.2)
        if message is None:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"no answer from Kafka at {kafka.bootstrap_servers}: is it up?")
            continue
        deadline = time.monotonic() + _PATIENCE_S
        error, number, offset = message.error(), message.partition() or 0, message.offset() or 0
        if error is None and number in ends and offset < ends[number]:
            found.append(message)
        after = offset + (error is None)
        if (error is None or error.code() == KafkaError._PARTITION_EOF) and after >= ends.get(number, after + 1):
            del ends[number]
    return sorted(found, key=lambda message: (message.partition() or 0, message.offset() or 0))
