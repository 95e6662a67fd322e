"""The topics of the registry on a broker: made where they are missing, checked where they are."""

import asyncio
import time
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # pyright: ignore[reportPrivateImportUsage]
from confluent_kafka.cimpl import NewTopic

from ingest.errors import BrokerUnavailable, TopicMismatch
from ingest.kafka.offsets import OffsetReader, unavailable
from ingest.kafka.settings import MAX_RECORD_BYTES, KafkaSettings, opened
from schemas import ALL_TOPICS

_TIMEOUT_S = 30.0
_CLIENT = "forgestream-admin"


@dataclass(frozen=True)
class TopicInfo:
    """A topic as it is on the broker."""

    name: str
    partitions: int
    records: int
    """From the first to the end offset: an upper bound where transactions or log compaction left gaps."""
    cleanup: str


@dataclass(frozen=True)
class _Wanted:
    partitions: int
    cleanup: str


async def ensure_topics(kafka: KafkaSettings) -> list[str]:
    """Creates the topics of the registry, and their dead-letter topics, that are missing. Returns their names.

    Raises:
        BrokerUnavailable: no answer.
        TopicMismatch: a topic exists with other partitions or clean-up.
    """
    return await asyncio.to_thread(_ensure, kafka)


async def describe_topics(kafka: KafkaSettings) -> list[TopicInfo]:
    """The registry's topics that exist on the broker, in the registry's order, dead letters after their topic.

    Raises:
        BrokerUnavailable: no answer.
    """
    return await asyncio.to_thread(_describe, kafka)


def _wanted(kafka: KafkaSettings) -> dict[str, _Wanted]:
    wanted: dict[str, _Wanted] = {}
    for topic in ALL_TOPICS:
        wanted[topic.full_name(kafka.topic_prefix)] = _Wanted(topic.partitions, topic.cleanup)
        wanted[topic.dead_letters(kafka.topic_prefix)] = _Wanted(1, "delete")
    return wanted


def _ensure(kafka: KafkaSettings) -> list[str]:
    admin = opened(AdminClient, kafka.client(**{"client.id": _CLIENT}))
    wanted, counts = _wanted(kafka), _partition_counts(kafka, admin)
    missing = [name for name in wanted if name not in counts]
    _check(kafka, admin, wanted, {name: counts[name] for name in wanted if name in counts})
    created = _create(kafka, admin, {name: wanted[name] for name in missing})
    counts = _wait_for(kafka, admin, missing)
    _check(kafka, admin, wanted, {name: counts[name] for name in missing if name not in created})
    return created


def _check(kafka: KafkaSettings, admin: AdminClient, wanted: dict[str, _Wanted], counts: dict[str, int]) -> None:
    cleanups = _cleanups(kafka, admin, list(counts))
    for name, partitions in counts.items():
        _check_one(name, wanted[name], _Wanted(partitions, cleanups[name]))


def _check_one(name: str, wanted: _Wanted, found: _Wanted) -> None:
    mend = "delete it, or use another prefix (FORGESTREAM_KAFKA__TOPIC_PREFIX)"
    if found.partitions != wanted.partitions:
        raise TopicMismatch(f"{name} has {found.partitions} partitions, not {wanted.partitions}: {mend}")
    if set(found.cleanup.split(",")) != {wanted.cleanup}:
        raise TopicMismatch(f"{name} has cleanup.policy {found.cleanup}, not {wanted.cleanup}: alter it, or {mend}")


def _create(kafka: KafkaSettings, admin: AdminClient, topics: dict[str, _Wanted]) -> list[str]:
    if not topics:
        return []
    new = [
        NewTopic(
            name,
            num_partitions=wanted.partitions,
            replication_factor=-1,  # as the cluster has it by default
            config={"cleanup.policy": wanted.cleanup, "max.message.bytes": str(MAX_RECORD_BYTES)},
        )
        for name, wanted in topics.items()
    ]
    created = []
    for name, answer in admin.create_topics(new, request_timeout=_TIMEOUT_S).items():
        try:
            answer.result()
            created.append(name)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another service was quicker
                raise unavailable(kafka, error.args[0]) from error
    return created


def _wait_for(kafka: KafkaSettings, admin: AdminClient, names: list[str]) -> dict[str, int]:
    """A created topic is known to the broker a moment later. Returns the partition counts of all topics."""
    deadline = time.monotonic() + _TIMEOUT_S
    while not set(names) <= (counts := _partition_counts(kafka, admin)).keys():
        if time.monotonic() > deadline:
            raise BrokerUnavailable(
                f"Kafka at {kafka.bootstrap_servers} created topics, but does not show them: try again"
            )
        time.sleep(0.02)
    # Partitions are usable when they answer, a moment after they are shown.
    OffsetReader(kafka, _CLIENT).ends((name, number) for name in names for number in range(counts[name]))
    return counts


def _partition_counts(kafka: KafkaSettings, admin: AdminClient) -> dict[str, int]:
    """Topics whose partitions all have a leader."""
    try:
        topics = admin.list_topics(timeout=_TIMEOUT_S).topics
    except KafkaException as error:
        raise unavailable(kafka, error.args[0]) from error
    return {
        name: len(topic.partitions)
        for name, topic in topics.items()
        if not topic.error and all(partition.leader >= 0 for partition in topic.partitions.values())
    }


def _cleanups(kafka: KafkaSettings, admin: AdminClient, names: list[str]) -> dict[str, str]:
    if not names:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    try:
        answers = admin.describe_configs(resources, request_timeout=_TIMEOUT_S)
        return {resource.name: answer.result()["cleanup.policy"].value or "" for resource, answer in answers.items()}
    except KafkaException as error:
        raise unavailable(kafka, error.args[0]) from error


def _describe(kafka: KafkaSettings) -> list[TopicInfo]:
    admin = opened(AdminClient, kafka.client(**{"client.id": _CLIENT}))
    counts = _partition_counts(kafka, admin)
    names = [name for name in _wanted(kafka) if name in counts]
    cleanups = _cleanups(kafka, admin, names)
    partitions = [(name, number) for name in names for number in range(counts[name])]
    reader = OffsetReader(kafka, _CLIENT)
    starts, ends = reader.starts(partitions), reader.ends(partitions)
    records = dict.fromkeys(names, 0)
    for name, number in partitions:
        records[name] += ends[name, number] - starts[name, number]
    return [TopicInfo(name, counts[name], records[name], cleanups[name]) for name in names]
