"""Records that cannot be read go to `<topic>.dlq`: their original bytes, and headers that say why and from where.

A dead letter is written each time that a consumer meets the record; `forgestream-origin` names the record itself.
"""

import asyncio
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from ingest.errors import DeliveryError
from ingest.kafka.producer import meet, producer_config
from ingest.kafka.raw import headers_of, read_topic
from ingest.kafka.settings import KafkaSettings, opened
from schemas import Topic

REASON = "forgestream-reason"
ORIGIN = "forgestream-origin"
_TIMEOUT_S = 30.0
_REASON_CHARACTERS = 1_000


@dataclass(frozen=True)
class DeadLetter:
    """A record that could not be read."""

    origin: str
    """`topic/partition/offset` of the record."""
    reason: str
    key: bytes
    value: bytes
    headers: dict[str, bytes]
    """All headers, the record's own and the two of the dead letter."""
    at_us: int


class DeadLetterWriter:
    """Writes dead letters. For the consumer's thread: its calls block."""

    def __init__(self, kafka: KafkaSettings, client_id: str) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._producer: Producer | None = None
        self._errors: list[KafkaError] = []

    def add(self, topic: Topic, message: Message, reason: str) -> None:
        """Queues a dead letter for a message of `topic`."""
        if self._producer is None:
            self._producer = opened(
                Producer,
                producer_config(self._kafka, self._client_id) | {"delivery.timeout.ms": int(_TIMEOUT_S * 1000)},
            )
            meet(self._producer)
        origin = f"{message.topic()}/{message.partition()}/{message.offset()}"
        headers: list[tuple[str, str | bytes | None]] = [
            (name, value) for name, value in headers_of(message) if name not in (REASON, ORIGIN)
        ]
        headers += [(REASON, reason[:_REASON_CHARACTERS].encode()), (ORIGIN, origin.encode())]
        try:
            self._producer.produce(
                topic.dead_letters(self._kafka.topic_prefix),
                message.value(),
                message.key(),
                headers=headers,
                on_delivery=self._delivered,
            )
        except (KafkaException, BufferError) as error:
            raise DeliveryError(f"{origin}: unreadable, and its dead letter was refused: {error}") from error

    def flush(self) -> None:
        """Waits until all of them are in the log.

        Raises:
            DeliveryError: one is not.
        """
        if self._producer is None:
            return
        left = self._producer.flush(_TIMEOUT_S + 1)
        errors, self._errors = self._errors, []
        if left or errors:
            reason = errors[0].str() if errors else "no acknowledgement"
            raise DeliveryError(
                f"dead letters not written: {reason}: is `forgestream topics apply` done, the broker up?"
            )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._errors.append(error)


async def read_dead_letters(kafka: KafkaSettings, topic: Topic) -> list[DeadLetter]:
    """All dead letters of a topic that are there now.

    Raises:
        BrokerUnavailable: the brokers do not answer.
        TopicMismatch: there is no such dead-letter topic.
    """
    messages = await asyncio.to_thread(read_topic, kafka, topic.dead_letters(kafka.topic_prefix))
    return [_dead_letter(message) for message in messages]


def _dead_letter(message: Message) -> DeadLetter:
    headers = dict(headers_of(message))
    return DeadLetter(
        origin=headers.get(ORIGIN, b"").decode(errors="replace"),
        reason=headers.get(REASON, b"").decode(errors="replace"),
        key=message.key() or b"",
        value=message.value() or b"",
        headers=headers,
        at_us=message.timestamp()[1] * 1000,
    )
