"""Consuming from the real broker."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ingest.errors import ConsumerFailed, OffsetLost, TopicMismatch
from ingest.kafka import consumer_thread
from ingest.kafka.consumer import EARLIEST, END, Received, RecordConsumer, TopicPartition, read_all
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import TransactionalProducer
from schemas import Step, Task
from schemas.topics import STEPS, TASKS

FIRST = (STEPS, 0)
ALL_TASKS = [(TASKS, number) for number in range(4)]


async def send_steps(producer: RecordProducer, steps: range) -> None:
    await asyncio.gather(*(producer.send(STEPS, Step(run_id="r", step=step)) for step in steps))


async def poll_until(consumer: RecordConsumer, count: int, polls: int = 60) -> list[Received[Any]]:
    found: list[Received[Any]] = []
    for _ in range(polls):
        found += await consumer.poll()
        if len(found) >= count:
            break
    return found


def steps_of(records: list[Received[Any]]) -> list[int]:
    return [one.record.step for one in records]


async def test_earliest_end_and_a_number_are_starts(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(5))
    read: dict[int, list[int]] = {}
    for start in (EARLIEST, 3, END):
        async with RecordConsumer.assign(kafka, {FIRST: start}) as consumer:
            assert consumer.positions() == {FIRST: {EARLIEST: 0, 3: 3, END: 5}[start]}
            read[start] = steps_of(await consumer.poll(timeout_s=1.0 if start != END else 0.2))
    assert read == {EARLIEST: [0, 1, 2, 3, 4], 3: [3, 4], END: []}


async def test_end_is_the_end_at_the_start(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(3))
    async with RecordConsumer.assign(kafka, {FIRST: END}) as consumer:
        await send_steps(producer, range(3, 5))
        assert steps_of(await poll_until(consumer, 2)) == [3, 4]


async def test_poll_gives_no_more_than_asked_and_positions_follow(
    kafka: KafkaSettings, producer: RecordProducer
) -> None:
    await send_steps(producer, range(10))
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        assert steps_of(await consumer.poll(max_records=4, timeout_s=2.0)) == [0, 1, 2, 3]
        assert consumer.positions() == {FIRST: 4}
        assert steps_of(await poll_until(consumer, 6)) == [4, 5, 6, 7, 8, 9]
        assert consumer.positions() == await consumer.end_offsets([FIRST]) == {FIRST: 10}


async def test_positions_reach_the_end_behind_transaction_markers(kafka: KafkaSettings) -> None:
    async def write(producer: TransactionalProducer, divisor: int) -> None:
        async with producer.transaction() as transaction:
            transaction.send(STEPS, Step(run_id="r", step=1))
            _ = 1 / divisor

    async with TransactionalProducer(kafka, "t") as producer:
        await write(producer, 1)
        with pytest.raises(ZeroDivisionError):
            await write(producer, 0)
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        ends = await consumer.end_offsets([FIRST])
        assert ends == {FIRST: 4}  # a record and its commit marker, a record and its abort marker
        assert len(await poll_until(consumer, 2, polls=5)) == 1
        assert consumer.positions() == ends


async def test_a_cancelled_poll_loses_nothing(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(200))
    found: list[int] = []
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        for attempt in range(400):
            try:
                async with asyncio.timeout(0.0005 * (attempt % 8)):
                    found += steps_of(await consumer.poll(max_records=7))
            except TimeoutError:
                continue
    assert found == list(range(200))


async def test_seek_goes_back_and_on(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(6))
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        assert len(await poll_until(consumer, 6)) == 6
        await consumer.seek({FIRST: 2})
        assert consumer.positions() == {FIRST: 2}
        assert steps_of(await poll_until(consumer, 4)) == [2, 3, 4, 5]
        await consumer.seek({FIRST: EARLIEST})
        assert steps_of(await poll_until(consumer, 6)) == [0, 1, 2, 3, 4, 5]
        with pytest.raises(ConsumerFailed, match=r"tasks\.v1/2: not assigned"):
            await consumer.seek({(TASKS, 2): 0})


async def test_what_a_cancelled_poll_fetched_does_not_survive_a_seek(
    kafka: KafkaSettings, producer: RecordProducer
) -> None:
    await send_steps(producer, range(6))
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        task = asyncio.create_task(consumer.poll(max_records=2, timeout_s=5.0))
        await asyncio.sleep(0)
        task.cancel()
        assert consumer._polling is not None
        await asyncio.wait([consumer._polling])  # the records are fetched, and nobody has taken them
        await consumer.seek({FIRST: 4})
        assert steps_of(await poll_until(consumer, 2)) == [4, 5]


async def test_a_paused_partition_rests(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await asyncio.gather(*(producer.send(TASKS, Task(task_id=str(index))) for index in range(40)))
    async with RecordConsumer.assign(kafka, dict.fromkeys(ALL_TASKS, 0)) as consumer:
        consumer.pause(ALL_TASKS[1:])
        first = await poll_until(consumer, 40, polls=5)
        assert {one.partition for one in first} == {0}
        consumer.resume(ALL_TASKS[1:])
        rest = await poll_until(consumer, 40 - len(first))
        assert {one.partition for one in rest} == {1, 2, 3}
        assert len(first) + len(rest) == 40


async def test_a_group_goes_on_where_it_committed_with_its_note(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(5))
    async with RecordConsumer.subscribe(kafka, [STEPS], group="g") as consumer:
        assert steps_of(await poll_until(consumer, 5)) == [0, 1, 2, 3, 4]
        await consumer.commit({FIRST: 3}, "seen: 0 1 2")
        assert await consumer.committed([FIRST]) == {FIRST: (3, "seen: 0 1 2")}
    async with RecordConsumer.subscribe(kafka, [STEPS], group="g") as consumer:
        assert steps_of(await poll_until(consumer, 2)) == [3, 4]
        assert consumer.positions() == {FIRST: 5}
    async with RecordConsumer.assign(kafka, {FIRST: 0}, group="g") as consumer:
        assert await consumer.committed([FIRST]) == {FIRST: (3, "seen: 0 1 2")}
        await consumer.commit({FIRST: 5})
        assert await consumer.committed([FIRST]) == {FIRST: (5, "")}


async def test_a_commit_without_a_group_is_refused(kafka: KafkaSettings) -> None:
    async with RecordConsumer.assign(kafka, {FIRST: 0}) as consumer:
        with pytest.raises(ConsumerFailed, match="group"):
            await consumer.commit({FIRST: 0})


async def test_the_hook_decides_where_a_partition_begins(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(5))
    assigned: list[TopicPartition] = []

    async def begin(partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        assigned.extend(partitions)
        assert await consumer.committed(partitions) == {FIRST: None}  # the hook may use the consumer
        return {FIRST: 3}

    consumer = RecordConsumer.subscribe(kafka, [STEPS], group="g", on_assign=begin)
    async with consumer:
        assert steps_of(await poll_until(consumer, 2)) == [3, 4]
    assert assigned == [FIRST]


async def test_a_hook_that_fails_comes_out_of_every_poll(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(2))

    async def fail(partitions: list[TopicPartition]) -> None:
        raise LookupError("no state")

    async with RecordConsumer.subscribe(kafka, [STEPS], group="g", on_assign=fail) as consumer:
        with pytest.raises(LookupError, match="no state"):
            await poll_until(consumer, 1)
        with pytest.raises(LookupError, match="no state"):
            await consumer.poll()


async def test_close_waits_for_a_hook_that_is_running(kafka: KafkaSettings) -> None:
    hook: list[str] = []

    async def slow(partitions: list[TopicPartition]) -> None:
        hook.append("begun")
        await asyncio.sleep(0.3)
        await consumer.committed(partitions)
        hook.append("done")

    consumer = RecordConsumer.subscribe(kafka, [STEPS], group="g", on_assign=slow)
    await consumer.start()
    polling = asyncio.create_task(consumer.poll(timeout_s=10))
    while not hook:
        await asyncio.sleep(0.01)
    await asyncio.wait_for(consumer.close(), 10)
    assert hook == ["begun", "done"]
    assert await polling == []


async def test_two_members_share_partitions_and_hand_them_over_committed(
    kafka: KafkaSettings, producer: RecordProducer
) -> None:
    await asyncio.gather(*(producer.send(TASKS, Task(task_id=str(index))) for index in range(100)))
    revoked: list[TopicPartition] = []

    async def hand_over(partitions: list[TopicPartition]) -> None:
        revoked.extend(partitions)
        positions = first.positions()
        await first.commit({key: positions[key] for key in partitions})

    first = RecordConsumer.subscribe(kafka, [TASKS], group="g", on_revoke=hand_over)
    async with first:
        assert len(await poll_until(first, 100)) == 100
        assert first.assignment == set(ALL_TASKS)
        async with RecordConsumer.subscribe(kafka, [TASKS], group="g") as second:
            again = await both_until(first, second, lambda: len(second.assignment) == 2 == len(first.assignment))
            assert again == []  # what was handed over was committed
            assert set(revoked) == second.assignment
            assert first.assignment | second.assignment == set(ALL_TASKS)
            await asyncio.gather(*(producer.send(TASKS, Task(task_id=str(index))) for index in range(100)))
            ends = await first.end_offsets(ALL_TASKS)
            found = await both_until(first, second, lambda: first.positions() | second.positions() == ends)
            assert len(found) == 100


async def both_until(
    first: RecordConsumer, second: RecordConsumer, done: Callable[[], bool], rounds: int = 60
) -> list[Received[Any]]:
    found: list[Received[Any]] = []
    for _ in range(rounds):
        found += await first.poll(timeout_s=0.05)
        found += await second.poll(timeout_s=0.05)
        if done():
            break
    return found


async def test_a_slow_caller_keeps_its_partitions(
    kafka: KafkaSettings, producer: RecordProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_thread, "REST_AFTER_S", 0.3)
    impatient = kafka.model_copy(update={"librdkafka": {"max.poll.interval.ms": "1200"}})
    await send_steps(producer, range(4))
    revoked: list[TopicPartition] = []

    async def note(partitions: list[TopicPartition]) -> None:
        revoked.extend(partitions)

    async with RecordConsumer.subscribe(impatient, [STEPS], group="g", on_revoke=note) as consumer:
        assert steps_of(await consumer.poll(max_records=2, timeout_s=5.0)) == [0, 1]
        await send_steps(producer, range(4, 6))
        await asyncio.sleep(2.4)  # twice the library's patience
        assert revoked == []
        assert not consumer._thread._early  # it does not pile up what nobody asks for
        assert steps_of(await poll_until(consumer, 4)) == [2, 3, 4, 5]
        await consumer.commit(consumer.positions())
        assert await consumer.committed([FIRST]) == {FIRST: (6, "")}


async def test_an_offset_beyond_the_log_is_an_error(kafka: KafkaSettings, producer: RecordProducer) -> None:
    await send_steps(producer, range(2))
    async with RecordConsumer.assign(kafka, {FIRST: 77}) as consumer:
        with pytest.raises(OffsetLost, match=r"steps\.v1, partition 0: offset 77 is not in the log"):
            await poll_until(consumer, 1)
        await consumer.seek({FIRST: 1})
        assert steps_of(await poll_until(consumer, 1)) == [1]


@pytest.mark.parametrize(
    "make",
    [
        lambda kafka: RecordConsumer.subscribe(kafka, [TASKS], group="g"),
        lambda kafka: RecordConsumer.assign(kafka, {(TASKS, 0): 0}),
    ],
    ids=["subscribe", "assign"],
)
async def test_a_missing_topic_is_said_at_the_start(
    broker: KafkaSettings, make: Callable[[KafkaSettings], RecordConsumer]
) -> None:
    elsewhere = broker.model_copy(update={"topic_prefix": "nobody-made-these."})
    with pytest.raises(TopicMismatch, match=r"nobody-made-these\.tasks\.v1 does not exist: .*topics apply"):
        await make(elsewhere).start()
    with pytest.raises(TopicMismatch):
        await read_all(elsewhere, TASKS)


async def test_a_closed_consumer_says_so_and_a_waiting_poll_ends(kafka: KafkaSettings) -> None:
    consumer = RecordConsumer.assign(kafka, {FIRST: 0})
    await consumer.start()
    waiting: Awaitable[list[Received[Any]]] = asyncio.create_task(consumer.poll(timeout_s=60))
    await asyncio.sleep(0.1)
    await asyncio.wait_for(consumer.close(), 5)
    assert await waiting == []
    with pytest.raises(ConsumerFailed, match="closed"):
        await consumer.poll()
    await consumer.close()
