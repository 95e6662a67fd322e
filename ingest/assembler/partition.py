"""One input partition that this process owns: its state, and the transactions in which that becomes trajectories."""

import itertools
import time
from collections.abc import Callable

from structlog.typing import FilteringBoundLogger

from ingest.assembler.errors import BrokenTree
from ingest.assembler.metrics import AssemblerMetrics
from ingest.assembler.settings import AssemblerSettings
from ingest.assembler.state import Offsets, PartitionState
from ingest.assembler.trajectory import assemble
from ingest.kafka.consumer import Received, RecordConsumer
from ingest.kafka.transactions import TransactionalProducer
from schemas import Trajectory
from schemas.ids import now_us
from schemas.topics import ASSEMBLER, COMPLETIONS, ROLLOUTS, TRAJECTORIES

IDLE_COMMIT_S = 1.0
"""How often offsets are committed while nothing is complete, for tools that watch the group's lag."""


class OwnedPartition:
    """The state of a partition and its transactional producer, which has fenced every older owner."""

    def __init__(
        self,
        state: PartitionState,
        producer: TransactionalProducer,
        settings: AssemblerSettings,
        metrics: AssemblerMetrics,
        log: FilteringBoundLogger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self._producer = producer
        self._settings = settings
        self._metrics = metrics
        self._log = log.bind(partition=state.partition)
        self._clock = clock
        self._committed = state.position
        self._committed_at = clock()

    @property
    def number(self) -> int:
        """The partition."""
        return self.state.partition

    async def close(self) -> None:
        """Give up the producer. What was not committed is found again by the next owner."""
        self._metrics.passed_over(self.state.counters)
        await self._producer.close()

    def take(self, received: Received) -> None:
        """Take in one record of either input."""
        if received.topic is ROLLOUTS:
            self.state.add_event(received.offset, received.record, received.at_us)
        elif not self.state.add_completion(received.offset, received.record, received.at_us):
            self._log.warning(
                "late completion ignored",
                rollout_id=received.record.rollout_id,
                completion_id=received.record.completion_id,
                offset=received.offset,
            )

    @property
    def due(self) -> bool:
        """Whether a transaction should be made now."""
        waited = self._clock() - self._committed_at
        if self.state.has_complete:
            return waited >= self._settings.commit_interval_s
        return waited >= IDLE_COMMIT_S and self.state.position != self._committed

    async def commit(self, consumer: RecordConsumer) -> None:
        """Write what is complete, the progress and the offsets read, all or nothing.

        Raises:
            TransactionFailed: nothing of it was written; the state must be read again from the log.
        """
        self._give_up_silent()
        complete = itertools.islice(self.state.complete(), self._settings.commit_max_count)
        made = [
            assemble(event, attempt, max_bytes=self._settings.rollout_max_bytes, at_us=now_us())
            for event, attempt in complete
        ]
        position, begun = self.state.position, self._clock()
        async with self._producer.transaction() as transaction:
            for trajectory, _ in made:
                transaction.send(TRAJECTORIES, trajectory)
            transaction.send(ASSEMBLER, self.state.progress())
            await transaction.send_offsets(consumer, self._offsets(position))
        self._committed, self._committed_at = position, self._clock()
        self._metrics.transaction_s.observe(self._committed_at - begun)
        self._metrics.passed_over(self.state.counters)
        for trajectory, broken in made:
            self._tell(trajectory, broken)

    def _offsets(self, position: Offsets) -> dict:
        return {(ROLLOUTS, self.number): position.rollouts, (COMPLETIONS, self.number): position.completions}

    def _give_up_silent(self) -> None:
        for rollout_id in self.state.abandon():
            self._log.warning("rollout given up: nothing was heard of it", rollout_id=rollout_id)

    def _tell(self, trajectory: Trajectory, broken: BrokenTree | None) -> None:
        self._metrics.written(trajectory, broken)
        log = self._log.bind(rollout_id=trajectory.rollout_id, group_id=trajectory.group_id, attempt=trajectory.attempt)
        if broken is not None:
            log.warning("completions do not fit together", reason=broken.reason, message=str(broken))
        log.info(
            "trajectory",
            trainable=trajectory.trainable,
            reason=trajectory.reason,
            reward=trajectory.reward,
            completions=trajectory.completion_count,
            samples=len(trajectory.samples),
            trained_tokens=trajectory.trained_tokens,
        )
