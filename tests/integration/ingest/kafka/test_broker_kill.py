"""The broker dies (SIGKILL) under load and comes back on the same address."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.kafka import EmbeddedBroker
from ingest.errors import TransactionFailed, TransactionStalled
from ingest.kafka.admin import ensure_topics
from ingest.kafka.consumer import EARLIEST, Received, RecordConsumer, read_all
from ingest.kafka.offsets import OffsetReader
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import TransactionalProducer
from schemas import Step, Trajectory
from schemas.topics import STEPS, TRAJECTORIES

FIRST = (STEPS, 0)


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory, kafka_cache: Path) -> Iterator[EmbeddedBroker]:
    """A broker that these tests may kill."""
    made = EmbeddedBroker(tmp_path_factory.mktemp("victim"), cache=kafka_cache)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def kafka(victim: EmbeddedBroker) -> KafkaSettings:
    """Topics of the test's own on the victim."""
    if victim.poll() is not None:
        victim.start()
    settings = KafkaSettings(bootstrap_servers=victim.bootstrap, topic_prefix=f"t{uuid.uuid4().hex[:8]}.")
    asyncio.run(ensure_topics(settings))
    return settings


async def crash(broker: EmbeddedBroker) -> None:
    """kill -9, a moment of nothing, the same address again."""
    before = broker.bootstrap
    await asyncio.to_thread(broker.kill)
    await asyncio.sleep(0.3)
    assert await asyncio.to_thread(broker.start) == before


async def test_nothing_acknowledged_is_lost_or_doubled_and_a_group_reads_on(
    victim: EmbeddedBroker, kafka: KafkaSettings
) -> None:
    acknowledged: dict[int, int] = {}
    """Step to offset."""
    received: list[Received[Step]] = []
    enough, crashed = asyncio.Event(), asyncio.Event()

    async def load(producer: RecordProducer, worker: int) -> None:
        for step in range(worker, 100_000, 8):
            acknowledged[step] = (await producer.send(STEPS, Step(run_id="r", step=step))).offset
            if len(acknowledged) == 500:
                enough.set()
            if crashed.is_set():
                break

    async with (
        RecordProducer(kafka, "test") as producer,
        RecordConsumer.subscribe(kafka, [STEPS], group="g") as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        for worker in range(8):
            tasks.create_task(load(producer, worker))
        received += await consumer.poll(timeout_s=10)
        await consumer.commit(consumer.positions(), "before")
        await enough.wait()
        await crash(victim)
        await asyncio.sleep(0.3)
        crashed.set()
        while len(received) < len(acknowledged) or producer.in_flight:
            received += await consumer.poll()
        await consumer.commit(consumer.positions(), "after")
        assert await consumer.committed([FIRST]) == {FIRST: (len(acknowledged), "after")}
    steps = [one.record.step for one in received]
    assert len(set(steps)) == len(steps)
    assert {one.record.step: one.offset for one in received} == acknowledged
    assert [one.record.step for one in await read_all(kafka, STEPS)] == steps


async def test_a_pipeline_is_exactly_once_over_a_crash_inside_of_a_transaction(
    victim: EmbeddedBroker, kafka: KafkaSettings
) -> None:
    async with RecordProducer(kafka, "test") as producer:
        await asyncio.gather(*(producer.send(STEPS, Step(run_id="r", step=step)) for step in range(400)))
    restarts = 0
    crashing: asyncio.Task[None] | None = None

    async def pipeline() -> None:
        """Steps in, one trajectory a step out; goes on at the committed offset."""
        nonlocal crashing
        async with (
            TransactionalProducer(kafka, "pipeline", timeout_s=15.0) as writer,
            RecordConsumer.assign(kafka, {FIRST: EARLIEST}, group="pipeline") as reader,
        ):
            committed = (await reader.committed([FIRST]))[FIRST]
            await reader.seek({FIRST: committed[0] if committed else 0})
            while reader.positions()[FIRST] < 400:
                batch = await reader.poll(max_records=20)
                if not batch:
                    continue
                async with writer.transaction() as transaction:
                    for one in batch:
                        transaction.send(TRAJECTORIES, Trajectory(group_id=str(one.record.step)))
                    if crashing is None and batch[-1].offset >= 100:
                        crashing = asyncio.create_task(crash(victim))
                        await asyncio.sleep(0.1)  # records are on their way, the broker is dead
                    await transaction.send_offsets(reader, reader.positions())

    while True:
        try:
            await pipeline()
            break
        except (TransactionFailed, TransactionStalled):
            restarts += 1
            assert restarts < 5
    assert crashing is not None
    await crashing
    groups = [int(one.record.group_id) for one in await read_all(kafka, TRAJECTORIES)]
    assert sorted(groups) == list(range(400))


async def test_end_offsets_are_known_again_after_the_broker_was_away(
    victim: EmbeddedBroker, kafka: KafkaSettings
) -> None:
    reader = OffsetReader(kafka, "offsets")
    name = STEPS.full_name(kafka.topic_prefix)
    async with RecordProducer(kafka, "offsets-load") as producer:
        await producer.send(STEPS, Step(run_id="r", step=1))
        assert reader.ends([(name, 0)]) == {(name, 0): 1}
        await crash(victim)
        await producer.send(STEPS, Step(run_id="r", step=2))
        assert await asyncio.to_thread(reader.ends, [(name, 0)]) == {(name, 0): 2}
