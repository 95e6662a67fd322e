"""Where partitions begin and end.

Asked over a connection of its own: on a consumer's connection the question would wait behind a fetch that itself
waits for records, up to half a second.
"""

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # pyright: ignore[reportPrivateImportUsage]

from ingest.errors import BrokerUnavailable, IngestError, TopicMismatch
from ingest.kafka.settings import KafkaSettings, opened

_TIMEOUT_S = 10.0
_UNKNOWN_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
# A partition that was made or moved this very moment.
_TRANSIENT = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
_RETRY_S = 0.02


class OffsetReader:
    """Blocking look-ups of first and end offsets; a partition is (full topic name, number)."""

    def __init__(self, kafka: KafkaSettings, client_id: str) -> None:
        self._kafka = kafka
        self._client_id = client_id
        self._admin: AdminClient | None = None

    def ends(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """One past the last record that a `read_committed` reader may see: open transactions are beyond it.

        Raises:
            BrokerUnavailable: no answer.
            TopicMismatch: a topic or partition does not exist.
        """
        return self._look_up(partitions, OffsetSpec.latest())

    def starts(self, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The first offset that the log still holds. Raises as `ends`."""
        return self._look_up(partitions, OffsetSpec.earliest())

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has; 0 when it does not exist.

        Raises:
            BrokerUnavailable: no answer.
        """
        try:
            found = self._client().list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
        except KafkaException as error:
            raise unavailable(self._kafka, error.args[0]) from error
        return len(found.partitions) if found and not found.error else 0

    def _look_up(self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec | None) -> dict[tuple[str, int], int]:
        left, offsets = set(partitions), dict[tuple[str, int], int]()
        deadline = time.monotonic() + _TIMEOUT_S
        while left:
            found, error = self._ask(left, spec)
            offsets |= found
            left -= found.keys()
            if error is None:
                continue
            if error.code() not in _TRANSIENT or time.monotonic() > deadline:
                raise unavailable(self._kafka, error)
            time.sleep(_RETRY_S)
            self._refresh()
        return offsets

    def _refresh(self) -> None:
        """Learn the leaders anew: the library keeps what a restarted broker no longer accepts."""
        try:
            self._client().list_topics(timeout=_TIMEOUT_S)
        except KafkaException as error:
            raise unavailable(self._kafka, error.args[0]) from error

    def _ask(
        self, partitions: Iterable[tuple[str, int]], spec: OffsetSpec | None
    ) -> tuple[dict[tuple[str, int], int], KafkaError | None]:
        """One question for all partitions: what was answered, and one of the errors."""
        wanted: dict[TopicPartition, Any] = {TopicPartition(name, number): spec for name, number in partitions}
        answers = self._client().list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S
        )
        found: dict[tuple[str, int], int] = {}
        error: KafkaError | None = None
        for partition, answer in answers.items():
            try:
                found[partition.topic, partition.partition] = answer.result().offset
            except KafkaException as failure:
                reason: KafkaError = failure.args[0]
                if reason.code() in _UNKNOWN_TOPIC:
                    raise missing(f"{partition.topic}, partition {partition.partition},") from failure
                error = reason
        return found, error

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = opened(AdminClient, self._kafka.client(**{"client.id": self._client_id}))
        return self._admin


def unavailable(kafka: KafkaSettings, error: KafkaError) -> IngestError:
    """The error for brokers that do not answer, or refuse to."""
    if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return IngestError(f"Kafka at {kafka.bootstrap_servers} refuses: {error.str()}: grant this user the right")
    return BrokerUnavailable(f"no answer from Kafka at {kafka.bootstrap_servers}: {error.str()}: is it up?")


def missing(topic: str) -> TopicMismatch:
    """The error for a topic that does not exist."""
    return TopicMismatch(f"{topic} does not exist: run `forgestream topics apply`")
