"""How many completions a second become trajectories: `python tests/bench/bench_assembler.py`.

First a backlog on an embedded broker, as after a restart: from the first read to the last trajectory committed, with
where the time goes. The peer reads and decodes the same records and does nothing with them, in the same process and
run. Then rollouts that finish one by one: how long until their trajectory can be read.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog
import uvloop
from prometheus_client import CollectorRegistry

sys.path.insert(0, str(Path(__file__).parents[2]))  # before the package `tests` that a dependency installs

import ingest.assembler.partition as partition_module
from deploy.local.kafka import EmbeddedBroker
from ingest.assembler.partition import OwnedPartition
from ingest.assembler.service import run
from ingest.assembler.settings import AssemblerSettings
from ingest.kafka import consumer_thread
from ingest.kafka.admin import ensure_topics
from ingest.kafka.consumer import EARLIEST, END, RecordConsumer, read_all
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from schemas import Completion, CompletionStatus, EndReason, RolloutEvent, RolloutEventKind, VersionRun
from schemas.arrays import pack_floats, pack_ids
from schemas.topics import COMPLETIONS, ROLLOUT_PARTITIONS, ROLLOUTS, TRAJECTORIES
from tests.bench.figures import machine, show

CACHE = Path(__file__).parents[2] / ".forgestream/kafka"
GOAL_PER_S = 1_000.0
TURNS, NEW_TOKENS, SAMPLED_TOKENS, TEXT_BYTES = 8, 300, 120, 2_500


def conversation(rollout_id: str, turns: int = TURNS) -> Iterator[Completion]:
    """A rollout of one branch, about 5 kB a completion."""
    parent, length = None, 0
    for index in range(turns):
        length += NEW_TOKENS
        name = f"{rollout_id}-{index}"
        yield Completion(
            completion_id=name,
            rollout_id=rollout_id,
            call_index=index,
            parent_id=parent,
            status=CompletionStatus.DELIVERED,
            request_delta="x" * (TEXT_BYTES * 4 // 5),
            response="y" * (TEXT_BYTES // 5),
            prompt_token_count=length,
            prompt_token_ids=pack_ids(range(NEW_TOKENS)),
            completion_token_ids=pack_ids(range(SAMPLED_TOKENS)),
            rollout_logprobs=pack_floats([-1.5] * SAMPLED_TOKENS),
            policy_version_runs=[VersionRun(version=1, start=0, end=SAMPLED_TOKENS)],
        )
        parent, length = name, length + SAMPLED_TOKENS


async def write(producer: RecordProducer, rollout_id: str) -> None:
    """One rollout as launcher and proxy record it."""
    for kind in (RolloutEventKind.QUEUED, RolloutEventKind.SCHEDULED, RolloutEventKind.STARTED):
        producer.send_soon(ROLLOUTS, RolloutEvent(rollout_id=rollout_id, kind=kind))
    deliveries = [await producer.send(COMPLETIONS, completion) for completion in conversation(rollout_id)]
    last = RolloutEvent(
        rollout_id=rollout_id,
        kind=RolloutEventKind.FINISHED,
        group_id=rollout_id,
        end_reason=EndReason.COMPLETED,
        reward=1.0,
        completions_end_offset=deliveries[-1].offset + 1,
    )
    await producer.send(ROLLOUTS, last)


class Clock:
    """Seconds spent in functions of the product, wrapped for the time of a measurement."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self._add(name, began)

        async def awaited(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return await function(*arguments, **options)
            finally:
                self._add(name, began)

        return awaited if asyncio.iscoroutinefunction(function) else wrapper

    def _add(self, name: str, began: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        self.counts[name] = self.counts.get(name, 0) + 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        with (
            patch.object(consumer_thread, "decode", self.timed("decode", consumer_thread.decode)),
            patch.object(partition_module, "assemble", self.timed("assemble", partition_module.assemble)),
            patch.object(OwnedPartition, "take", self.timed("take", OwnedPartition.take)),
            patch.object(OwnedPartition, "commit", self.timed("commit", OwnedPartition.commit)),
        ):
            yield


def context() -> ServiceContext:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    return ServiceContext("assembler", structlog.get_logger(), CollectorRegistry(), asyncio.Event())


def written(ctx: ServiceContext) -> float:
    return ctx.registry.get_sample_value("forgestream_assembler_trajectories_total", {"reason": ""}) or 0.0


async def plain_loop(kafka: KafkaSettings, count: int) -> float:
    """Seconds to read and decode all completions and events."""
    places = {(topic, number): EARLIEST for topic in (ROLLOUTS, COMPLETIONS) for number in range(ROLLOUT_PARTITIONS)}
    began, seen = time.perf_counter(), 0
    async with RecordConsumer.assign(kafka, places) as consumer:
        while seen < count:
            seen += len(await consumer.poll(2_000, 0.05))
    return time.perf_counter() - began


async def backlog(kafka: KafkaSettings, rollouts: int, clock: Clock, group: str) -> tuple[float, float]:
    """Seconds and CPU seconds from the assembler's start to its last trajectory."""
    ctx = context()
    began, cpu = time.perf_counter(), time.process_time()
    with clock.watching():
        task = asyncio.create_task(run(ctx, AssemblerSettings(port=0, group=group), kafka))
        while written(ctx) < rollouts and not task.done():
            await asyncio.sleep(0.01)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    ctx.stopping.set()
    await task
    return seconds, used


async def one_by_one(kafka: KafkaSettings, count: int) -> list[float]:
    """Milliseconds from the acknowledged end of a rollout to its trajectory in a reader's hands."""
    ctx, ended, waited = context(), {}, []
    task = asyncio.create_task(run(ctx, AssemblerSettings(port=0, group="live"), kafka))
    places = {(TRAJECTORIES, number): END for number in range(TRAJECTORIES.partitions)}

    async def produce() -> None:
        async with RecordProducer(kafka, "bench") as producer:
            for number in range(count):
                await write(producer, f"live-{number}")
                ended[f"live-{number}"] = time.perf_counter()
                await asyncio.sleep(0.05)

    async with RecordConsumer.assign(kafka, places) as reader:
        await asyncio.sleep(2)
        producing = asyncio.create_task(produce())
        while len(waited) < count:
            for one in await reader.poll(100, 0.01):
                waited.append((time.perf_counter() - ended.get(one.record.rollout_id, time.perf_counter())) * 1e3)
        await producing
    ctx.stopping.set()
    await task
    return sorted(waited)


async def measure(broker: str, rollouts: int) -> None:
    kafka = KafkaSettings(bootstrap_servers=broker, topic_prefix="bench.")
    await ensure_topics(kafka)
    completions, events = rollouts * TURNS, rollouts * 4
    async with RecordProducer(kafka, "bench") as producer:
        for start in range(0, rollouts, 200):
            names = [f"r{number}" for number in range(start, min(start + 200, rollouts))]
            await asyncio.gather(*(write(producer, name) for name in names))
    before = await plain_loop(kafka, completions + events)
    clock = Clock()
    seconds, cpu = await backlog(kafka, rollouts, clock, "backlog")
    peer_s = statistics.median([before, await plain_loop(kafka, completions + events)])
    found = await read_all(kafka, TRAJECTORIES)
    assert len(found) == rollouts
    assert all(one.record.trainable and one.record.completion_count == TURNS for one in found)
    where = (
        f"{rollouts} rollouts of {TURNS} completions of {NEW_TOKENS} new and {SAMPLED_TOKENS} sampled tokens and "
        f"{TEXT_BYTES} B text, {ROLLOUT_PARTITIONS} partitions; start included; broker on the same cores; {machine()}"
    )
    peer = completions / peer_s
    show("assembler_completions", completions / seconds, "1/s", where, peer=peer, goal=GOAL_PER_S, at_least=True)
    show("assembler_cpu", cpu / completions * 1e6, "us/completion", where)
    for name in ("decode", "take", "assemble", "commit"):
        each = f"{where}; {clock.counts[name]} calls"
        show(f"assembler_split_{name}", clock.seconds[name] / completions * 1e6, "us/completion", each)
    show("assembler_transaction", clock.seconds["commit"] / clock.counts["commit"] * 1e3, "ms", where)
    waited = await one_by_one(kafka, 100)
    live = f"100 rollouts that end one by one, 20/s at most; {machine()}"
    show("assembler_latency_p50", waited[len(waited) // 2], "ms", live)
    show("assembler_latency_p95", waited[int(len(waited) * 0.95)], "ms", live)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=1_500)
    options, _ = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = EmbeddedBroker(Path(folder), cache=CACHE)
        try:
            uvloop.run(measure(broker.start(), options.rollouts))
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
