"""Fixtures for everybody: one embedded broker a session, and fresh topics on it for each test."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kafka import EmbeddedBroker
from ingest.kafka.admin import ensure_topics
from ingest.kafka.settings import KafkaSettings

KAFKA_CACHE = Path(__file__).parents[1] / ".forgestream/kafka"


@pytest.fixture(scope="session")
def kafka_cache() -> Path:
    """Where the broker's jars lie."""
    return KAFKA_CACHE


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory, kafka_cache: Path) -> Iterator[KafkaSettings]:
    """The session's broker. Tests that hurt a broker start their own."""
    embedded = EmbeddedBroker(tmp_path_factory.mktemp("kafka"), cache=kafka_cache)
    bootstrap = embedded.start()
    yield KafkaSettings(bootstrap_servers=bootstrap)
    embedded.stop()


@pytest.fixture
def kafka(broker: KafkaSettings) -> KafkaSettings:
    """The session's broker with a prefix of the test's own, and all topics made."""
    settings = broker.model_copy(update={"topic_prefix": f"t{uuid.uuid4().hex[:8]}."})
    asyncio.run(ensure_topics(settings))
    return settings
