"""Records that cannot be read."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from ingest.errors import DeliveryError
from ingest.kafka import deadletters
from ingest.kafka.consumer import EARLIEST, RecordConsumer, read_all
from ingest.kafka.deadletters import DeadLetterWriter, read_dead_letters
from ingest.kafka.settings import KafkaSettings
from schemas import Blob, Step, encode
from schemas.topics import BLOBS, STEPS

FIRST = (STEPS, 0)


def write(kafka: KafkaSettings, *values: bytes | None, topic: str = STEPS.base_name, partition: int = 0) -> None:
    """Whatever bytes, past our producer."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in values:
        producer.produce(kafka.topic_prefix + topic, value, b"k", partition, headers=[("trace", b"abc")])
    assert producer.flush(10) == 0


async def read(consumer: RecordConsumer, end: int) -> list[int]:
    found: list[int] = []
    while consumer.positions()[FIRST] < end:
        found += [one.record.step for one in await consumer.poll()]
    return found


async def test_a_bad_record_becomes_a_dead_letter_and_the_partition_goes_on(kafka: KafkaSettings) -> None:
    good = [encode(Step(run_id="k", step=step)) for step in range(3)]
    other_topic = encode(Blob(sha256="k"))
    write(kafka, good[0], b"rubbish", good[1], other_topic, good[2], good[2][:9])
    async with RecordConsumer.assign(kafka, {FIRST: EARLIEST}) as consumer:
        assert await read(consumer, 6) == [0, 1, 2]
    letters = await read_dead_letters(kafka, STEPS)
    name = f"{kafka.topic_prefix}steps.v1"
    assert [letter.origin for letter in letters] == [f"{name}/0/1", f"{name}/0/3", f"{name}/0/5"]
    assert [letter.value for letter in letters] == [b"rubbish", other_topic, good[2][:9]]
    assert [letter.key for letter in letters] == [b"k"] * 3
    assert "without the Avro frame" in letters[0].reason
    assert "belongs to another topic" in letters[1].reason
    assert "unreadable Step" in letters[2].reason
    assert letters[0].headers["trace"] == b"abc"


async def test_a_scan_leaves_bad_records_out_without_dead_letters(kafka: KafkaSettings) -> None:
    write(kafka, b"rubbish", encode(Step(run_id="k", step=1)))
    assert [one.record.step for one in await read_all(kafka, STEPS)] == [1]
    assert await read_dead_letters(kafka, STEPS) == []


async def test_a_tombstone_on_a_compacted_topic_is_no_bad_record(kafka: KafkaSettings) -> None:
    write(kafka, encode(Blob(sha256="k", data=b"1")), None, topic=BLOBS.base_name, partition=2)
    assert [one.record.data for one in await read_all(kafka, BLOBS)] == [b"1"]
    async with RecordConsumer.assign(kafka, {(BLOBS, 2): 0}) as consumer:
        while consumer.positions() != {(BLOBS, 2): 2}:
            await consumer.poll()
    assert await read_dead_letters(kafka, BLOBS) == []


async def test_a_dead_letter_that_cannot_be_written_holds_the_position(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadletters, "_TIMEOUT_S", 1.0)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for answer in admin.delete_topics([STEPS.dead_letters(kafka.topic_prefix)]).values():
        answer.result()
    write(kafka, encode(Step(run_id="k", step=0)), b"rubbish")
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        with pytest.raises(DeliveryError, match="dead letters not written"):
            await read(consumer, 2)
        assert consumer.positions() == {FIRST: 0}


async def test_a_dead_letter_that_is_refused_at_once_holds_the_position_too(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise DeliveryError("no")

    write(kafka, encode(Step(run_id="k", step=0)), b"rubbish", encode(Step(run_id="k", step=1)))
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        with monkeypatch.context() as patched:
            patched.setattr(DeadLetterWriter, "add", refuse)
            with pytest.raises(DeliveryError, match="no"):
                await read(consumer, 3)
        assert consumer.positions() == {FIRST: 0}
        assert await read(consumer, 3) == [0, 1]
    assert len(await read_dead_letters(kafka, STEPS)) == 1
