"""What the tests of the Kafka layer share."""

from collections.abc import AsyncIterator

import pytest

from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings


@pytest.fixture
async def producer(kafka: KafkaSettings) -> AsyncIterator[RecordProducer]:
    """A producer on the session's broker."""
    async with RecordProducer(kafka, "test") as made:
        yield made
