"""Producing to the real broker, and to none."""

import asyncio
import random

import pytest

from ingest.errors import DeliveryError, ProducerFull
from ingest.kafka.consumer import read_all
from ingest.kafka.partitions import partition_of
from ingest.kafka.producer import Delivery, RecordProducer
from ingest.kafka.settings import KafkaSettings
from schemas import SchemaError, Step, Task
from schemas.topics import STEPS, TASKS

NO_BROKER = KafkaSettings(bootstrap_servers="127.0.0.1:9")


def task(index: int, text: str = "do it") -> Task:
    return Task(task_id=f"task-{index}", instruction=text)


async def test_a_record_comes_back_as_it_was_sent(kafka: KafkaSettings, producer: RecordProducer) -> None:
    sent = Task(task_id="größe-1", taskset="s", instruction="find the needle")
    delivery = await producer.send(TASKS, sent, headers={"trace": "abc"})
    (received,) = await read_all(kafka, TASKS)
    assert received.record == sent
    assert (received.partition, received.offset) == (delivery.partition, delivery.offset)
    assert received.key == "größe-1"
    assert received.headers == {"trace": "abc"}
    assert received.topic is TASKS
    assert 1.6e15 < received.at_us < 4e15


async def test_the_acknowledged_offset_is_the_records_own(kafka: KafkaSettings, producer: RecordProducer) -> None:
    deliveries = [await producer.send(STEPS, Step(run_id="r", step=step)) for step in range(3)]
    assert deliveries == [Delivery(0, 0), Delivery(0, 1), Delivery(0, 2)]
    assert [(one.offset, one.record.step) for one in await read_all(kafka, STEPS)] == [(0, 0), (1, 1), (2, 2)]


async def test_partition_of_is_what_the_producer_does(kafka: KafkaSettings, producer: RecordProducer) -> None:
    random.seed(1)
    keys = ["".join(random.choices("abcäöü01234-_/", k=random.randint(1, 40))) for _ in range(300)]
    deliveries = await asyncio.gather(*(producer.send(TASKS, Task(task_id=key)) for key in keys))
    assert [delivery.partition for delivery in deliveries] == [partition_of(key, 4) for key in keys]
    assert {delivery.partition for delivery in deliveries} == {0, 1, 2, 3}


async def test_records_sent_at_once_keep_their_order(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await asyncio.gather(*(producer.send(STEPS, Step(run_id="r", step=step)) for step in range(2_000)))
    assert [one.record.step for one in await read_all(kafka, STEPS)] == list(range(2_000))


async def test_send_waits_while_too_much_is_in_flight_and_loses_nothing(kafka: KafkaSettings) -> None:
    async with RecordProducer(kafka, "test", max_in_flight=10) as producer:
        sending = [asyncio.create_task(producer.send(STEPS, Step(run_id="r", step=step))) for step in range(500)]
        highest = 0
        while not all(task.done() for task in sending):
            highest = max(highest, producer.in_flight)
            await asyncio.sleep(0)
    assert highest == 10
    assert [one.record.step for one in await read_all(kafka, STEPS)] == list(range(500))


@pytest.mark.parametrize("bound", [{"max_in_flight": 3}, {"max_in_flight_bytes": 3_300}])
async def test_send_soon_refuses_what_is_too_much(bound: dict[str, int]) -> None:
    producer = RecordProducer(NO_BROKER, "test", **bound)
    await producer.start()
    waiting = [producer.send_soon(TASKS, task(index, "x" * 1_000)) for index in range(3)]
    with pytest.raises(ProducerFull, match="3 records"):
        producer.send_soon(TASKS, task(3, "x" * 1_000))
    polite = asyncio.create_task(producer.send(TASKS, task(4, "x" * 1_000)))
    await asyncio.sleep(0.05)
    assert not polite.done()
    assert producer.in_flight == 3
    polite.cancel()
    await producer.close(timeout_s=0.1)
    for future in waiting:
        with pytest.raises(DeliveryError, match=r"task-\d' not acknowledged"):
            await future


async def test_a_broker_that_is_away_is_a_delivery_error_in_time() -> None:
    async with RecordProducer(NO_BROKER, "test", delivery_timeout_s=0.5) as producer:
        with pytest.raises(DeliveryError, match=r"tasks\.v1: record 'task-1' not acknowledged.*127\.0\.0\.1:9 up"):
            await producer.send(TASKS, task(1))
        assert producer.in_flight == 0


async def test_flush_says_when_it_did_not_work() -> None:
    async with RecordProducer(NO_BROKER, "test", delivery_timeout_s=0.5) as producer:
        future = producer.send_soon(TASKS, task(1))
        with pytest.raises(DeliveryError, match=r"1 records not acknowledged .* within 0\.1 s"):
            await producer.flush(timeout_s=0.1)
        with pytest.raises(DeliveryError):
            await future


async def test_a_record_that_is_too_large_says_so(producer: RecordProducer) -> None:
    with pytest.raises(DeliveryError, match=r"too large.*blobs\.v1"):
        await producer.send(TASKS, task(1, "x" * 11_000_000))
    assert (await producer.send(TASKS, task(2, "x" * 9_000_000))).offset == 0
    assert producer.in_flight == 0


async def test_a_record_of_another_topic_is_refused(producer: RecordProducer) -> None:
    with pytest.raises(SchemaError, match=r"tasks\.v1 carries Task, not Step"):
        await producer.send(TASKS, Step(run_id="r"))


async def test_a_closed_producer_says_so(kafka: KafkaSettings) -> None:
    producer = RecordProducer(kafka, "test")
    await producer.start()
    await producer.close()
    with pytest.raises(DeliveryError, match="closed"):
        await producer.send(TASKS, task(1))
    await producer.close()
