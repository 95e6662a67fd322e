"""Transactions on the real broker."""

import asyncio

import pytest

from ingest.errors import ConsumerFailed, DeliveryError, Fenced, TransactionFailed
from ingest.kafka.consumer import RecordConsumer, read_all
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import TransactionalProducer
from schemas import AssemblerProgress, Step, Trajectory
from schemas.topics import ASSEMBLER, STEPS, TRAJECTORIES

FIRST = (STEPS, 0)


async def groups(kafka: KafkaSettings) -> list[str]:
    return sorted(one.record.group_id for one in await read_all(kafka, TRAJECTORIES))


def trajectory(group: str) -> Trajectory:
    return Trajectory(group_id=group)


async def write(producer: TransactionalProducer, *groups: str) -> None:
    async with producer.transaction() as transaction:
        for group in groups:
            transaction.send(TRAJECTORIES, trajectory(group))


async def write_and_fail(producer: TransactionalProducer, group: str, pause_s: float = 0.2) -> None:
    async with producer.transaction() as transaction:
        transaction.send(TRAJECTORIES, trajectory(group))
        await asyncio.sleep(pause_s)
        raise ZeroDivisionError


async def test_records_of_several_topics_appear_together_with_headers(kafka: KafkaSettings) -> None:
    async with TransactionalProducer(kafka, "t") as producer, producer.transaction() as transaction:
        transaction.send(TRAJECTORIES, trajectory("a"), headers={"trace": "abc"})
        transaction.send(ASSEMBLER, AssemblerProgress(partition=2, rollouts_offset=7))
        await asyncio.sleep(0.1)
        assert await groups(kafka) == []  # not before the commit
    (one,) = await read_all(kafka, TRAJECTORIES)
    assert (one.record.group_id, one.headers) == ("a", {"trace": "abc"})
    (progress,) = await read_all(kafka, ASSEMBLER)
    assert (progress.key, progress.record.rollouts_offset) == ("2", 7)


async def test_what_was_aborted_is_never_seen_and_the_producer_goes_on(kafka: KafkaSettings) -> None:
    async with TransactionalProducer(kafka, "t") as producer:
        with pytest.raises(ZeroDivisionError):
            await write_and_fail(producer, "bad")
        await write(producer, "good")
    assert await groups(kafka) == ["good"]


async def test_an_abort_right_behind_a_commit_does_no_harm(kafka: KafkaSettings) -> None:
    async with TransactionalProducer(kafka, "t") as producer:
        for index in range(20):
            await write(producer, f"good-{index:02}")
            with pytest.raises(ZeroDivisionError):
                await write_and_fail(producer, "bad", pause_s=0.001 * index)
    assert await groups(kafka) == [f"good-{index:02}" for index in range(20)]


async def test_a_cancelled_transaction_is_aborted(kafka: KafkaSettings) -> None:
    async with TransactionalProducer(kafka, "t") as producer:
        task = asyncio.create_task(write_and_fail(producer, "bad"))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await write(producer, "good")
    assert await groups(kafka) == ["good"]


async def test_a_refused_record_undoes_its_transaction(kafka: KafkaSettings) -> None:
    async with TransactionalProducer(kafka, "t") as producer:
        with pytest.raises(DeliveryError, match="too large"):
            await write(producer, "bad", "x" * 11_000_000)
        await write(producer, "good")
    assert await groups(kafka) == ["good"]


async def test_offsets_are_committed_with_the_records_or_not_at_all(
    kafka: KafkaSettings, producer: RecordProducer
) -> None:
    await asyncio.gather(*(producer.send(STEPS, Step(run_id="r", step=step)) for step in range(4)))

    async def pass_on(writer: TransactionalProducer, reader: RecordConsumer, offset: int, divisor: int) -> None:
        async with writer.transaction() as transaction:
            transaction.send(TRAJECTORIES, trajectory(str(offset)))
            await transaction.send_offsets(reader, {FIRST: offset})
            _ = offset / divisor

    async with (
        TransactionalProducer(kafka, "t") as writer,
        RecordConsumer.subscribe(kafka, [STEPS], group="g") as reader,
    ):
        while not await reader.poll():
            pass
        await pass_on(writer, reader, 3, 1)
        with pytest.raises(ZeroDivisionError):
            await pass_on(writer, reader, 4, 0)
        assert await reader.committed([FIRST]) == {FIRST: (3, "")}
    assert await groups(kafka) == ["3"]


async def test_a_reader_of_its_own_can_commit_in_a_transaction_too(kafka: KafkaSettings) -> None:
    async with (
        TransactionalProducer(kafka, "t") as writer,
        RecordConsumer.assign(kafka, {FIRST: 0}, group="g") as reader,
    ):
        async with writer.transaction() as transaction:
            await transaction.send_offsets(reader, {FIRST: 9})
        assert await reader.committed([FIRST]) == {FIRST: (9, "")}


async def test_offsets_of_a_closed_consumer_undo_the_transaction(kafka: KafkaSettings) -> None:
    reader = RecordConsumer.assign(kafka, {FIRST: 0}, group="g")
    async with reader:
        pass

    async def pass_on(writer: TransactionalProducer) -> None:
        async with writer.transaction() as transaction:
            transaction.send(TRAJECTORIES, trajectory("bad"))
            await transaction.send_offsets(reader, {FIRST: 1})

    async with TransactionalProducer(kafka, "t") as writer:
        with pytest.raises(ConsumerFailed):
            await pass_on(writer)
        await write(writer, "good")
    assert await groups(kafka) == ["good"]


async def test_a_newer_holder_of_the_id_fences_the_older(kafka: KafkaSettings) -> None:
    async def be_overtaken(old: TransactionalProducer) -> None:
        async with old.transaction() as transaction:
            transaction.send(TRAJECTORIES, trajectory("zombie"))
            await asyncio.sleep(0.2)
            async with TransactionalProducer(kafka, "t") as new:
                await write(new, "heir")

    async with TransactionalProducer(kafka, "t") as old:
        with pytest.raises(Fenced, match="newer producer took over"):
            await be_overtaken(old)
        with pytest.raises(Fenced):
            await write(old, "zombie")
    assert await groups(kafka) == ["heir"]


async def test_a_closed_producer_says_so(kafka: KafkaSettings) -> None:
    producer = TransactionalProducer(kafka, "t")
    async with producer:
        pass
    with pytest.raises(TransactionFailed, match="closed"):
        await write(producer, "never")


async def test_no_broker_is_said_in_time() -> None:
    away = KafkaSettings(bootstrap_servers="127.0.0.1:9")
    with pytest.raises(TransactionFailed, match=r"start: .*127\.0\.0\.1:9 up"):
        await TransactionalProducer(away, "t", timeout_s=1.0).start()
