"""A transactional call that never returns. The real library does that too seldom to wait for it, hence the fake."""

import asyncio
import threading
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from ingest.errors import Fenced, TransactionFailed, TransactionStalled
from ingest.kafka import transactions
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import TransactionalProducer
from schemas import Trajectory
from schemas.topics import TRAJECTORIES


class FakeProducer:
    """Counts calls; `faults` says what a call does instead of succeeding."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.calls: list[str] = []
        self.faults: dict[str, list[Any]] = {}

    def _call(self, name: str) -> None:
        self.calls.append(name)
        fault = self.faults.get(name, [])
        if fault:
            action = fault.pop(0)
            if isinstance(action, threading.Event):
                action.wait(10)
            else:
                raise KafkaException(action)

    def list_topics(self, timeout: float) -> None:
        pass

    def flush(self, timeout: float) -> None:
        self._call("flush")

    def init_transactions(self, timeout: float) -> None:
        self._call("init")

    def begin_transaction(self) -> None:
        self._call("begin")

    def produce(self, *arguments: Any, **named: Any) -> None:
        self._call("produce")

    def commit_transaction(self, timeout: float) -> None:
        self._call("commit")

    def abort_transaction(self, timeout: float) -> None:
        self._call("abort")


@pytest.fixture
async def producer(monkeypatch: pytest.MonkeyPatch) -> TransactionalProducer:
    monkeypatch.setattr(transactions, "Producer", FakeProducer)
    monkeypatch.setattr(transactions, "_WATCHDOG_MARGIN_S", 0.1)
    made = TransactionalProducer(KafkaSettings(bootstrap_servers="nowhere:1"), "t", timeout_s=0.2)
    await made.start()
    return made


def fake(producer: TransactionalProducer) -> FakeProducer:
    assert isinstance(producer._producer, FakeProducer)
    return producer._producer


async def one_transaction(producer: TransactionalProducer) -> None:
    async with producer.transaction() as transaction:
        transaction.send(TRAJECTORIES, Trajectory(group_id="g"))


async def test_a_step_that_never_ends_is_a_stall_and_the_producer_is_lost(producer: TransactionalProducer) -> None:
    release = threading.Event()
    fake(producer).faults["commit"] = [release]
    began = time.monotonic()
    with pytest.raises(TransactionStalled, match=r"commit did not end within 0\.3 s"):
        await one_transaction(producer)
    assert time.monotonic() - began < 2
    with pytest.raises(TransactionStalled):
        await one_transaction(producer)
    release.set()
    await producer.close()


async def test_a_retriable_error_is_tried_again(producer: TransactionalProducer) -> None:
    fake(producer).faults["commit"] = [KafkaError(KafkaError._TIMED_OUT, "slow", retriable=True)]
    await one_transaction(producer)
    assert fake(producer).calls == ["init", "begin", "produce", "commit", "commit"]
    await producer.close()


async def test_an_error_that_undoes_the_transaction_leaves_the_producer_usable(producer: TransactionalProducer) -> None:
    fake(producer).faults["commit"] = [KafkaError(KafkaError._TIMED_OUT, "lost", txn_requires_abort=True)]
    with pytest.raises(TransactionFailed, match="do it again"):
        await one_transaction(producer)
    await one_transaction(producer)
    assert fake(producer).calls == [
        "init",
        "begin",
        "produce",
        "commit",
        "flush",
        "abort",
        "begin",
        "produce",
        "commit",
    ]
    await producer.close()


async def test_fenced_is_said_as_such_and_nothing_is_aborted(producer: TransactionalProducer) -> None:
    fake(producer).faults["begin"] = [KafkaError(KafkaError._FENCED, "zombie", fatal=True)]
    with pytest.raises(Fenced):
        await one_transaction(producer)
    assert fake(producer).calls == ["init", "begin"]
    await producer.close()


async def test_a_cancelled_commit_is_waited_for(producer: TransactionalProducer) -> None:
    release = threading.Event()
    fake(producer).faults["commit"] = [release]
    task = asyncio.create_task(one_transaction(producer))
    while "commit" not in fake(producer).calls:
        await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0.02)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fake(producer).calls == ["init", "begin", "produce", "commit"]
    await producer.close()
