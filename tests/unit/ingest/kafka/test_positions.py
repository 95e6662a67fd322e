"""What counts after a seek or a rebalance."""

from ingest.kafka.positions import Batch, Positions
from ingest.kafka.received import Received, TopicPartition
from schemas import Task
from schemas.topics import TASKS

ZERO, ONE = (TASKS, 0), (TASKS, 1)


def record(partition: TopicPartition, offset: int) -> Received[Task]:
    return Received(partition[0], partition[1], offset, "k", Task(), {}, 0)


def batch(positions: Positions, *records: Received[Task]) -> Batch:
    keys = [(one.topic, one.partition) for one in records]
    offsets = {key: one.offset + 1 for key, one in zip(keys, records, strict=True)}
    return Batch(list(records), offsets, {key: positions.epoch(key) for key in keys})


def test_a_claimed_batch_moves_the_positions() -> None:
    positions = Positions()
    positions.own({ZERO: 5, ONE: 0})
    assert [one.offset for one in positions.claim(batch(positions, record(ZERO, 5), record(ZERO, 6)))] == [5, 6]
    assert positions.owned() == {ZERO: 7, ONE: 0}


def test_what_was_fetched_before_a_seek_is_not_handed_out() -> None:
    positions = Positions()
    positions.own({ZERO: 5, ONE: 8})
    fetched = batch(positions, record(ZERO, 5), record(ONE, 8))
    positions.own({ZERO: 2})
    assert [(one.partition, one.offset) for one in positions.claim(fetched)] == [(1, 8)]
    assert positions.owned() == {ZERO: 2, ONE: 9}


def test_what_was_fetched_before_a_revocation_is_not_handed_out() -> None:
    positions = Positions()
    positions.own({ZERO: 5})
    fetched = batch(positions, record(ZERO, 5))
    positions.disown([ZERO])
    assert positions.claim(fetched) == []
    assert positions.owned() == {}


def test_a_partition_that_comes_back_does_not_revive_old_records() -> None:
    positions = Positions()
    positions.own({ZERO: 5})
    fetched = batch(positions, record(ZERO, 5))
    positions.disown([ZERO])
    positions.own({ZERO: 3})
    assert positions.claim(fetched) == []
    assert positions.owned() == {ZERO: 3}


def test_a_batch_forgets_a_partition_as_a_whole() -> None:
    positions = Positions()
    positions.own({ZERO: 0, ONE: 0})
    fetched = batch(positions, record(ZERO, 0), record(ONE, 0))
    fetched.forget([ZERO])
    assert [one.partition for one in fetched.records] == [1]
    assert fetched.positions == {ONE: 1}
