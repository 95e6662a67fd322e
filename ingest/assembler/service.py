"""The assembler's process: owns partitions as the group gives them, reads, and commits.

All work happens on one task, so that records, positions and transactions of a partition never overtake each other.
Rebalance hooks run beside it and share its lock.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from ingest.assembler.metrics import AssemblerMetrics
from ingest.assembler.partition import OwnedPartition
from ingest.assembler.progress import clamped, read_limits, read_progress
from ingest.assembler.settings import AssemblerSettings
from ingest.assembler.state import Offsets, PartitionState
from ingest.errors import BrokerUnavailable, Fenced, TransactionFailed, TransactionStalled
from ingest.kafka.consumer import RecordConsumer, TopicPartition
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import TransactionalProducer
from ingest.service.context import ServiceContext
from ingest.service.telemetry import report_gauges
from schemas import AssemblerProgress, Topic
from schemas.topics import COMPLETIONS, ROLLOUTS

MAX_RECORDS = 2_000
"""Most records of one poll."""
WATCH_INTERVAL_S = 1.0
FAILURES_IN_A_ROW = 5
"""After so many failed transactions of a partition the process ends."""
INPUTS = (ROLLOUTS, COMPLETIONS)


async def run(ctx: ServiceContext, settings: AssemblerSettings, kafka: KafkaSettings) -> None:
    """Assemble until the service is asked to stop.

    Raises:
        Fenced: another process has taken a partition over.
        TransactionStalled: Kafka did not end a transaction; a new process finds out what became of it.
        IngestError: Kafka cannot be reached, or refuses.
    """
    await Assembler(ctx, settings, kafka).run()


class Assembler:
    """The partitions of this process and the loop over them."""

    def __init__(self, ctx: ServiceContext, settings: AssemblerSettings, kafka: KafkaSettings) -> None:
        self._ctx = ctx
        self._settings = settings
        self._kafka = kafka
        self._metrics = AssemblerMetrics(ctx.registry)
        self._owned: dict[int, OwnedPartition] = {}
        self._held: set[TopicPartition] = set()
        self._waiting: set[TopicPartition] = set()
        self._failures: dict[int, int] = {}
        self._lock = asyncio.Lock()
        self._consumer = RecordConsumer.subscribe(
            _co_partitioned(kafka),
            INPUTS,
            group=settings.group,
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
        )

    async def run(self) -> None:
        """Until the service is asked to stop, or an error."""
        async with RecordProducer(self._kafka, "forgestream-assembler") as telemetry, self._consumer:
            beside = [
                asyncio.create_task(self._watch()),
                asyncio.create_task(report_gauges(self._ctx, telemetry, self._gauges)),
            ]
            try:
                await self._loop(beside)
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.gather(*beside, return_exceptions=True)

    async def _loop(self, beside: list[asyncio.Task]) -> None:
        while not self._ctx.stopping.is_set():
            await self._read()
            async with self._lock:
                due = [partition for partition in self._owned.values() if partition.due]
                await asyncio.gather(*(self._commit(partition) for partition in due))
                self._hold_back()
            for task in beside:
                if task.done():
                    task.result()
            self._ctx.ready()
        async with self._lock:
            await asyncio.gather(*(self._commit(p) for p in self._owned.values() if p.state.has_complete))

    async def _read(self) -> None:
        """One poll. Nothing is awaited between its return and the last record's taking in: no rebalance in between."""
        received = await self._consumer.poll(MAX_RECORDS, self._settings.commit_interval_s)
        positions = self._consumer.positions()
        for one in received:
            partition = self._owned.get(one.partition)
            if partition is not None:
                partition.take(one)
        for topic in INPUTS:
            self._metrics.read(topic, sum(one.topic is topic for one in received))
        for number, partition in self._owned.items():
            rollouts, completions = positions.get((ROLLOUTS, number)), positions.get((COMPLETIONS, number))
            if rollouts is not None and completions is not None:
                partition.state.advance(Offsets(rollouts, completions))

    async def _commit(self, partition: OwnedPartition) -> None:
        try:
            await partition.commit(self._consumer)
        except (Fenced, TransactionStalled):
            raise
        except TransactionFailed as error:
            await self._begin_again(partition.number, error)
        else:
            self._failures.pop(partition.number, None)

    async def _begin_again(self, number: int, error: TransactionFailed) -> None:
        """Nothing of the transaction was written: read the partition's state from the log again."""
        self._failures[number] = failures = self._failures.get(number, 0) + 1
        if failures >= FAILURES_IN_A_ROW:
            raise error
        self._ctx.log.warning("transaction failed, partition is read again", partition=number, error=str(error))
        await self._drop([number])
        if {(topic, number) for topic in INPUTS} <= self._consumer.assignment:
            await self._consumer.seek(await self._open([number]))

    def _hold_back(self) -> None:
        """Stop reading the inputs that ran ahead, and go on with those that did not any more."""
        inputs: Mapping[str, Topic] = {"rollouts": ROLLOUTS, "completions": COMPLETIONS}
        wait = {
            (inputs[name], number)
            for number, partition in self._owned.items()
            if (name := partition.state.must_wait()) is not None
        }
        if wait - self._waiting:
            self._consumer.pause(wait - self._waiting)
        if self._waiting - wait:
            self._consumer.resume(self._waiting - wait)
        self._waiting = wait

    async def _watch(self) -> None:
        """Ask every second where the inputs end."""
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            states = {number: partition.state for number, partition in self._owned.items()}
            with suppress(BrokerUnavailable):
                ends = await self._consumer.end_offsets([(topic, number) for number in states for topic in INPUTS])
                for number, state in states.items():
                    state.ends_are(Offsets(ends[ROLLOUTS, number], ends[COMPLETIONS, number]))

    def _gauges(self) -> dict[str, float]:
        return self._metrics.gauges(partition.state for partition in self._owned.values())

    # Rebalances

    async def _on_assign(self, given: list[TopicPartition]) -> dict[TopicPartition, int]:
        async with self._lock:
            self._held |= set(given)
            numbers = sorted(
                number
                for number in {number for _, number in given}
                if all((topic, number) in self._held for topic in INPUTS)
            )
            starts = await self._open(numbers)
            # The group may give both inputs of a partition one after the other: the first one is being read already.
            await self._consumer.seek({key: offset for key, offset in starts.items() if key not in given})
            return {key: offset for key, offset in starts.items() if key in given}

    async def _on_revoke(self, taken: list[TopicPartition]) -> None:
        async with self._lock:
            self._held -= set(taken)
            self._waiting -= set(taken)
            await self._drop({number for _, number in taken})

    async def _open(self, numbers: list[int]) -> dict[TopicPartition, int]:
        """Take partitions over; where to begin to read them. Fencing comes first: what is read after it stands."""
        producers = {number: self._producer(number) for number in numbers}
        await asyncio.gather(*(producer.start() for producer in producers.values()))
        progress = await read_progress(self._kafka, numbers)
        limits = await read_limits(self._kafka, numbers)
        starts: dict[TopicPartition, int] = {}
        for number, producer in producers.items():
            first, ends = limits[number]
            record = progress.get(number, AssemblerProgress(partition=number))
            begin = clamped(record, first)
            state = PartitionState(record, ends, self._settings.bounds())
            state.advance(begin)
            self._owned[number] = OwnedPartition(state, producer, self._settings, self._metrics, self._ctx.log)
            starts |= {(ROLLOUTS, number): begin.rollouts, (COMPLETIONS, number): begin.completions}
            self._ctx.log.info(
                "partition taken over", partition=number, **begin._asdict(), finished=len(record.finished)
            )
        return starts

    def _producer(self, number: int) -> TransactionalProducer:
        return TransactionalProducer(self._kafka, f"assembler-{number}", timeout_s=self._settings.transaction_timeout_s)

    async def _drop(self, numbers: set[int] | list[int]) -> None:
        for number in numbers:
            if partition := self._owned.pop(number, None):
                await partition.close()
                self._ctx.log.info("partition given up", partition=number)


def _co_partitioned(kafka: KafkaSettings) -> KafkaSettings:
    """Settings of a group whose members get partition n of both inputs; the assignor `uniform` would not see to it."""
    return kafka.model_copy(update={"librdkafka": {**kafka.librdkafka, "group.remote.assignor": "range"}})
