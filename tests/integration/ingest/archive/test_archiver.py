"""The archiver on a real broker: every record of every topic in a file once, whatever happens to the process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client import CollectorRegistry

from ingest.archive.errors import ArchiveAhead, ArchiveInUse
from ingest.archive.files import files, next_offset, partition_folder, sole_writer
from ingest.archive.service import run
from ingest.archive.settings import ArchiverSettings
from ingest.kafka.admin import ensure_topics
from ingest.kafka.consumer import read_all
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import TransactionalProducer
from ingest.service.context import ServiceContext
from schemas import Blob, Completion, Policy, RolloutEvent, Step, Task, Topic, Trajectory
from schemas.topics import BLOBS, COMPLETIONS, POLICIES, ROLLOUTS, STEPS, TASKS, TRAJECTORIES

ROOT = Path(__file__).parents[4]
CHILD = """
import json, sys
from ingest.archive.service import run
from ingest.archive.settings import ArchiverSettings
from ingest.kafka.settings import KafkaSettings
from ingest.service.runner import run_service
settings = ArchiverSettings(**json.loads(sys.argv[1]))
kafka = KafkaSettings(**json.loads(sys.argv[2]))
sys.exit(run_service("archiver", lambda ctx: run(ctx, settings, kafka), settings))
"""


class UndoneError(Exception):
    """Makes a transaction abort."""


def settings(root: Path, **values: object) -> ArchiverSettings:
    return ArchiverSettings.model_validate({"port": 0, "root": root, "flush_interval_s": 0.2, **values})


@asynccontextmanager
async def archiving(kafka: KafkaSettings, root: Path, **values: object) -> AsyncIterator[None]:
    """An archiver in this process, which must end well."""
    ctx = ServiceContext("archiver", structlog.get_logger(), CollectorRegistry(), asyncio.Event())
    task = asyncio.create_task(run(ctx, settings(root, **values), kafka))
    try:
        yield
    finally:
        ctx.stopping.set()
        await asyncio.wait_for(task, 30)


def archived(root: Path, topic: str, column: str) -> list:
    """A column of a topic, partition by partition in the order of the log."""
    folders = sorted((root / topic).glob("partition=*"))
    tables = [pq.ParquetFile(path).read([column]) for folder in folders for path in files(folder)]
    return pa.concat_tables(tables)[column].to_pylist() if tables else []


async def until_archived(root: Path, topic: str, count: int) -> None:
    async with asyncio.timeout(30):
        while True:
            if len(archived(root, topic, "_offset")) >= count:
                return
            await asyncio.sleep(0.05)


async def test_every_topic_is_archived_as_it_is(kafka: KafkaSettings, tmp_path: Path) -> None:
    records: list[tuple[Topic, object]] = [
        (TASKS, Task(task_id="t", instruction="do")),
        (ROLLOUTS, RolloutEvent(rollout_id="r")),
        (COMPLETIONS, Completion(completion_id="c", rollout_id="r")),
        (BLOBS, Blob(sha256="s", data=b"x")),
        (STEPS, Step(run_id="run", step=1)),
        (POLICIES, Policy(policy_id="policy", version=1)),
    ]
    async with RecordProducer(kafka, "test") as producer, archiving(kafka, tmp_path):
        for topic, record in records:
            await producer.send(topic, record)  # type: ignore[arg-type]
        for topic, _ in records:
            await until_archived(tmp_path, topic.base_name, 1)
    assert archived(tmp_path, "tasks.v1", "instruction") == ["do"]
    assert archived(tmp_path, "completions.v1", "completion_id") == ["c"]
    assert archived(tmp_path, "blobs.v1", "data") == [b"x"]
    assert archived(tmp_path, "policies.v1", "_key") == ["policy"]
    (log,) = await read_all(kafka, ROLLOUTS)
    place = [archived(tmp_path, "rollouts.v1", name) for name in ("_partition", "_offset", "_key")]
    assert place == [[log.partition], [log.offset], ["r"]]


async def test_gaps_of_transactions_are_stepped_over(kafka: KafkaSettings, tmp_path: Path) -> None:
    async with TransactionalProducer(kafka, "test") as producer:
        for number in range(5):
            async with producer.transaction() as transaction:
                transaction.send(TRAJECTORIES, Trajectory(trajectory_id=f"t{number}", group_id="g"))
            with suppress(UndoneError):
                async with producer.transaction() as transaction:
                    transaction.send(TRAJECTORIES, Trajectory(trajectory_id="never", group_id="g"))
                    raise UndoneError
    expected = [received.offset for received in await read_all(kafka, TRAJECTORIES)]
    async with archiving(kafka, tmp_path):
        await until_archived(tmp_path, "trajectories.v1", 5)
    assert archived(tmp_path, "trajectories.v1", "trajectory_id") == [f"t{n}" for n in range(5)]
    assert archived(tmp_path, "trajectories.v1", "_offset") == expected
    assert expected != list(range(5))
    async with archiving(kafka, tmp_path):
        await asyncio.sleep(1)
    assert archived(tmp_path, "trajectories.v1", "_offset") == expected


async def test_a_clean_stop_writes_what_is_in_hand(kafka: KafkaSettings, tmp_path: Path) -> None:
    async with RecordProducer(kafka, "test") as producer, archiving(kafka, tmp_path, flush_interval_s=600):
        await producer.send(TASKS, Task(task_id="t"))
        await asyncio.sleep(1.5)
        assert archived(tmp_path, "tasks.v1", "task_id") == []
    assert archived(tmp_path, "tasks.v1", "task_id") == ["t"]


async def test_unreadable_records_are_archived_as_dead_letters(kafka: KafkaSettings, tmp_path: Path) -> None:
    raw = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    async with RecordProducer(kafka, "test") as producer, archiving(kafka, tmp_path):
        raw.produce(STEPS.full_name(kafka.topic_prefix), b"no avro", b"run")
        assert raw.flush(10) == 0
        await producer.send(STEPS, Step(run_id="run", step=7))
        await until_archived(tmp_path, "steps.v1", 1)
        await until_archived(tmp_path, "steps.v1.dlq", 1)
    assert archived(tmp_path, "steps.v1", "step") == [7]
    assert archived(tmp_path, "steps.v1.dlq", "value") == [b"no avro"]
    assert archived(tmp_path, "steps.v1.dlq", "origin_topic") == ["steps.v1"]
    assert archived(tmp_path, "steps.v1.dlq", "origin_offset") == [0]
    assert "without the Avro frame" in archived(tmp_path, "steps.v1.dlq", "reason")[0]


async def test_killed_again_and_again_it_archives_each_record_once(kafka: KafkaSettings, tmp_path: Path) -> None:
    root = tmp_path / "archive"
    writing = asyncio.create_task(_write_slowly(kafka, 600))
    kills = 0
    with (tmp_path / "log").open("ab") as log:
        while not writing.done():
            child = _start(kafka, settings(root, roll_bytes=20_000), log)
            before = len(archived(root, "completions.v1", "_offset"))
            growing = asyncio.create_task(until_archived(root, "completions.v1", before + 1))
            await asyncio.wait([writing, growing], return_when=asyncio.FIRST_COMPLETED)
            growing.cancel()
            await asyncio.sleep(0.1 * kills)
            child.send_signal(signal.SIGKILL)
            child.wait(10)
            kills += 1
    await writing
    async with archiving(kafka, root):
        await until_archived(root, "completions.v1", 600)
    assert kills >= 3
    inside = {(one.partition, one.offset): one.record.completion_id for one in await read_all(kafka, COMPLETIONS)}
    columns = [archived(root, "completions.v1", name) for name in ("_partition", "_offset", "completion_id")]
    assert len(columns[0]) == 600
    assert {(p, o): name for p, o, name in zip(*columns, strict=True)} == inside


async def test_an_archive_of_another_cluster_is_refused(kafka: KafkaSettings, tmp_path: Path) -> None:
    async with RecordProducer(kafka, "test") as producer, archiving(kafka, tmp_path):
        await producer.send(STEPS, Step(run_id="run", step=1))
        await until_archived(tmp_path, "steps.v1", 1)
    other = kafka.model_copy(update={"topic_prefix": f"{kafka.topic_prefix}other."})
    await ensure_topics(other)
    with pytest.raises(ArchiveAhead, match=r"goes to offset 1 of .*steps\.v1/0, but that ends at 0"):
        async with archiving(other, tmp_path):
            await asyncio.sleep(1)


async def test_a_second_archiver_on_the_same_folder_is_refused(kafka: KafkaSettings, tmp_path: Path) -> None:
    with sole_writer(tmp_path), pytest.raises(ArchiveInUse, match="stop that one"):
        async with archiving(kafka, tmp_path):
            pass


async def test_what_has_expired_is_skipped_with_a_warning(kafka: KafkaSettings, tmp_path: Path) -> None:
    async with RecordProducer(kafka, "test") as producer:
        async with archiving(kafka, tmp_path):
            await producer.send(STEPS, Step(run_id="run", step=1))
            await until_archived(tmp_path, "steps.v1", 1)
        for step in range(2, 6):
            await producer.send(STEPS, Step(run_id="run", step=step))
        admin = AdminClient(kafka.client())
        (answer,) = admin.delete_records([TopicPartition(STEPS.full_name(kafka.topic_prefix), 0, 3)]).values()
        await asyncio.to_thread(answer.result, 10)
        async with archiving(kafka, tmp_path):
            await until_archived(tmp_path, "steps.v1", 3)
    assert archived(tmp_path, "steps.v1", "step") == [1, 4, 5]
    assert next_offset(partition_folder(tmp_path, "steps.v1", 0)) == 5


def _start(kafka: KafkaSettings, archiver: ArchiverSettings, log: IO[bytes]) -> subprocess.Popen:
    arguments = [archiver.model_dump_json(), kafka.model_dump_json()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], cwd=ROOT, stderr=log, env=environment)


async def _write_slowly(kafka: KafkaSettings, count: int) -> None:
    async with RecordProducer(kafka, "test") as producer:
        for number in range(count):
            completion = Completion(completion_id=f"c{number}", rollout_id=f"r{number % 7}", response="x" * 200)
            await producer.send(COMPLETIONS, completion)
            await asyncio.sleep(0.015)
