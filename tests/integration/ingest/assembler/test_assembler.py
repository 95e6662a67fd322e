"""The assembler on a real broker: what comes out, restarts, rebalances, and the traps of transactions."""

import asyncio

import pytest
from confluent_kafka import Producer

from ingest.assembler.progress import read_progress
from ingest.assembler.service import run
from ingest.assembler.settings import AssemblerSettings
from ingest.errors import Fenced, TransactionFailed
from ingest.kafka.consumer import RecordConsumer, read_all
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import Transaction, TransactionalProducer
from schemas import AssemblerProgress
from schemas.arrays import unpack_floats, unpack_mask
from schemas.topics import ASSEMBLER, COMPLETIONS, ROLLOUT_PARTITIONS, ROLLOUTS, TRAJECTORIES
from tests.integration.ingest.assembler.runs import assembling, context, times, trajectories, until, write_rollout
from tests.unit.ingest.assembler.worlds import Turn, ids

NAMES = [f"r{number}" for number in range(12)]


async def write(kafka: KafkaSettings, names: list[str], **event: object) -> dict[str, list[Turn]]:
    async with RecordProducer(kafka, "test") as producer:
        made = await asyncio.gather(*(write_rollout(producer, name, **event) for name in names))
    return dict(zip(names, made, strict=True))


async def test_what_was_recorded_becomes_trajectories(kafka: KafkaSettings) -> None:
    turns = await write(kafka, NAMES)
    async with assembling(kafka):
        found = await until(kafka, lambda found: len(found) >= len(NAMES))
    assert times(found) == dict.fromkeys(NAMES, 1)
    for trajectory in found:
        (sample,) = trajectory.samples
        last = turns[trajectory.rollout_id][-1]
        assert trajectory.trainable
        assert ids(sample.token_ids) == last.whole
        assert unpack_mask(sample.loss_mask) == [0, 0, 1, 1, 1, 1] * 3
        assert unpack_floats(sample.rollout_logprobs) == [
            -token if trained else 0 for token, trained in zip(last.whole, [0, 0, 1, 1, 1, 1] * 3, strict=True)
        ]


async def test_the_key_is_the_group_so_that_a_learner_sees_it_in_one_partition(kafka: KafkaSettings) -> None:
    await write(kafka, ["a", "b", "c"], group_id="same")
    async with assembling(kafka):
        await until(kafka, lambda found: len(found) == 3)
    received = await read_all(kafka, TRAJECTORIES)
    assert ({one.key for one in received}, len({one.partition for one in received})) == ({"same"}, 1)


async def test_offsets_and_progress_stand_at_the_end_when_all_is_done(kafka: KafkaSettings) -> None:
    await write(kafka, NAMES)
    async with assembling(kafka):
        await until(kafka, lambda found: len(found) == len(NAMES))
        await asyncio.sleep(1.2)  # the last offsets go out with the next idle commit
    keys = [(topic, number) for topic in (ROLLOUTS, COMPLETIONS) for number in range(ROLLOUT_PARTITIONS)]
    async with RecordConsumer.assign(kafka, dict.fromkeys(keys, 0), group="assembler") as reader:
        ends, committed = await reader.end_offsets(keys), await reader.committed(keys)
    progress = await read_progress(kafka, range(ROLLOUT_PARTITIONS))
    for key, end in ends.items():
        assert end == 0 or committed[key] == (end, "")
    used = {number for (_, number), end in ends.items() if end}
    assert {n: (p.rollouts_offset, p.completions_offset) for n, p in progress.items()} == {
        number: (ends[ROLLOUTS, number], ends[COMPLETIONS, number]) for number in used
    }
    assert sorted(name for one in progress.values() for name in one.finished) == sorted(NAMES)


async def test_a_restart_writes_nothing_twice_and_goes_on(kafka: KafkaSettings) -> None:
    await write(kafka, NAMES[:6])
    async with assembling(kafka):
        await until(kafka, lambda found: len(found) == 6)
    await write(kafka, NAMES[6:])
    async with assembling(kafka):
        await until(kafka, lambda found: len(found) >= 12)
        await asyncio.sleep(0.3)
    assert times(await trajectories(kafka)) == dict.fromkeys(NAMES, 1)


async def test_the_older_of_two_owners_is_fenced_and_ends(kafka: KafkaSettings) -> None:
    older = asyncio.create_task(run(context(), AssemblerSettings(port=0, group="older"), kafka))
    names = ["r0"]
    await write(kafka, names)
    await until(kafka, lambda found: len(found) == 1)  # the older one owns its partitions
    async with assembling(kafka, group="newer"):
        async with asyncio.timeout(30):
            while not older.done():
                names.append(f"r{len(names)}")
                await write(kafka, names[-1:])
        with pytest.raises(Fenced, match="a newer producer took over"):
            await older
        await until(kafka, lambda found: times(found).keys() >= set(names))
        await asyncio.sleep(0.3)
    assert times(await trajectories(kafka)) == dict.fromkeys(names, 1)


async def test_members_share_the_partitions_and_hand_them_over(kafka: KafkaSettings) -> None:
    names = [f"r{number}" for number in range(60)]
    async with assembling(kafka):
        await write(kafka, names[:20])
        await until(kafka, lambda found: len(found) >= 20)
        async with assembling(kafka) as second:
            async with asyncio.timeout(20):
                while not second.registry.get_sample_value(
                    "forgestream_assembler_records_total", {"topic": "rollouts.v1"}
                ):
                    await write(kafka, [names.pop(20)])
                    await asyncio.sleep(0.1)
            await write(kafka, names[20:40])
            await asyncio.sleep(0.5)
        await write(kafka, names[40:])
        await until(kafka, lambda found: times(found).keys() >= set(names))
        await asyncio.sleep(0.3)
    assert set(times(await trajectories(kafka)).values()) == {1}


async def test_a_transaction_that_fails_is_done_again_from_the_log(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_offsets, failures = Transaction.send_offsets, iter(range(3))

    async def fail_first(self: Transaction, *arguments: object) -> None:
        if next(failures, None) is not None:
            raise TransactionFailed("the group moved on")
        await send_offsets(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Transaction, "send_offsets", fail_first)
    await write(kafka, NAMES)
    async with assembling(kafka):
        found = await until(kafka, lambda found: len(found) >= len(NAMES))
    assert times(found) == dict.fromkeys(NAMES, 1)
    assert next(failures, None) is None


async def test_progress_behind_a_foreign_open_transaction_is_not_missed(kafka: KafkaSettings) -> None:
    mine, foreign = TransactionalProducer(kafka, "mine"), TransactionalProducer(kafka, "foreign")
    async with mine, foreign:
        async with foreign.transaction() as open_one:
            open_one.send(ASSEMBLER, AssemblerProgress(partition=1, rollouts_offset=5))
            await asyncio.sleep(0.3)  # the record reaches the log
            async with mine.transaction() as transaction:
                transaction.send(ASSEMBLER, AssemblerProgress(partition=0, rollouts_offset=7, finished=["r"]))
            reading = asyncio.create_task(read_progress(kafka, [0]))
            await asyncio.sleep(1.0)
            assert not reading.done()  # nobody can tell yet
        assert await asyncio.wait_for(reading, 10) == {
            0: AssemblerProgress(partition=0, rollouts_offset=7, finished=["r"])
        }


async def test_the_newest_progress_of_each_partition_is_found_however_far_back(
    kafka: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.assembler.progress._TAILS", (3, 6))
    async with TransactionalProducer(kafka, "writer") as producer:
        for partition, offset in [(0, 1), (1, 2), (0, 3), (1, 4), (1, 5), (1, 6), (1, 7)]:
            async with producer.transaction() as transaction:
                transaction.send(ASSEMBLER, AssemblerProgress(partition=partition, rollouts_offset=offset))
    found = await read_progress(kafka, [0, 1, 2])
    assert {number: record.rollouts_offset for number, record in found.items()} == {0: 3, 1: 7}


async def test_a_record_that_cannot_be_read_makes_its_rollout_incomplete_and_stops_nobody(kafka: KafkaSettings) -> None:
    async with RecordProducer(kafka, "test") as producer:
        raw = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2_random"})
        raw.produce(COMPLETIONS.full_name(kafka.topic_prefix), b"no avro", b"hurt")
        assert raw.flush(10) == 0
        await write_rollout(producer, "hurt", turns=2, completion_count=3)
        await write_rollout(producer, "well", turns=2)
    async with assembling(kafka):
        found = await until(kafka, lambda found: len(found) == 2)
    assert {t.rollout_id: (t.trainable, t.reason) for t in found} == {"hurt": (False, "incomplete"), "well": (True, "")}
