"""Topics on the real broker."""

import time
import uuid

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from ingest.errors import BrokerUnavailable, TopicMismatch
from ingest.kafka import admin
from ingest.kafka.admin import TopicInfo, describe_topics, ensure_topics
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from schemas import ALL_TOPICS, Task
from schemas.topics import TASKS


@pytest.fixture
def fresh(broker: KafkaSettings) -> KafkaSettings:
    """A prefix without topics."""
    return broker.model_copy(update={"topic_prefix": f"a{uuid.uuid4().hex[:8]}."})


def create(kafka: KafkaSettings, partitions: int, cleanup: str) -> None:
    client = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    topic = NewTopic(f"{kafka.topic_prefix}tasks.v1", partitions, config={"cleanup.policy": cleanup})
    client.create_topics([topic])[topic.topic].result()
    while topic.topic not in client.list_topics().topics:
        time.sleep(0.02)


async def test_all_topics_are_made_once(fresh: KafkaSettings) -> None:
    created = await ensure_topics(fresh)
    names = [topic.full_name(fresh.topic_prefix) for topic in ALL_TOPICS]
    assert sorted(created) == sorted(names + [f"{name}.dlq" for name in names])
    assert await ensure_topics(fresh) == []


async def test_only_what_is_missing_is_made(fresh: KafkaSettings) -> None:
    create(fresh, 4, "delete")
    created = await ensure_topics(fresh)
    assert len(created) == 2 * len(ALL_TOPICS) - 1
    assert f"{fresh.topic_prefix}tasks.v1" not in created


@pytest.mark.parametrize(
    ("partitions", "cleanup", "complaint"),
    [(3, "delete", "has 3 partitions, not 4"), (4, "compact", r"cleanup\.policy compact, not delete")],
)
async def test_a_topic_that_differs_is_named_and_nothing_is_made(
    fresh: KafkaSettings, partitions: int, cleanup: str, complaint: str
) -> None:
    create(fresh, partitions, cleanup)
    with pytest.raises(TopicMismatch, match=rf"tasks\.v1 .*{complaint}.*another prefix"):
        await ensure_topics(fresh)
    assert [topic.name for topic in await describe_topics(fresh)] == [f"{fresh.topic_prefix}tasks.v1"]


async def test_topics_are_described_with_their_records(kafka: KafkaSettings) -> None:
    assert await describe_topics(kafka.model_copy(update={"topic_prefix": "nothing-here."})) == []
    async with RecordProducer(kafka, "test") as producer:
        for index in range(3):
            await producer.send(TASKS, Task(task_id=str(index)))
    described = await describe_topics(kafka)
    prefix = kafka.topic_prefix
    assert described[:2] == [
        TopicInfo(f"{prefix}tasks.v1", 4, 3, "delete"),
        TopicInfo(f"{prefix}tasks.v1.dlq", 1, 0, "delete"),
    ]
    assert TopicInfo(f"{prefix}policies.v1", 1, 0, "compact") in described
    assert len(described) == 2 * len(ALL_TOPICS)


async def test_no_broker_is_said_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_TIMEOUT_S", 0.5)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:9.*is it up"):
        await ensure_topics(KafkaSettings(bootstrap_servers="127.0.0.1:9"))
