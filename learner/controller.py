"""The loop from the log to the next policy version.

    read → collect → step: update → checkpoint → weights → announce

Each arrow of a step is durable before the next one begins, so a learner that dies at any moment leaves a state from
which the next one continues: with the step not done, or done and perhaps not yet announced, and never done twice.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from ingest.errors import Fenced, IngestError
from ingest.kafka.consumer import RecordConsumer
from ingest.service.context import ServiceContext
from learner.announcer import Announcer
from learner.checkpoints import Checkpoints, LearnerState
from learner.groups import RUN_COMPLETE, Group, GroupCollector
from learner.metrics import WaitMeter
from learner.policies import PolicyFolders
from learner.rows import Batch
from learner.settings import LearnerSettings
from learner.staleness import staleness
from learner.weights import weights_digest
from schemas import Policy, Step
from schemas.ids import now_us
from schemas.topics import TRAJECTORIES

T = TypeVar("T")

RETRY_S = 1.0
"""Between attempts to announce while the broker is away."""


class Trainer(Protocol):
    """What the controller needs of `PolicyWorker`. Called from one thread."""

    def update(self, batch: Batch) -> dict[str, float]:
        """One optimizer step; its metrics."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that a later `load` needs."""
        ...

    def load(self, folder: Path) -> None:
        """Continue from what `save` wrote."""
        ...

    def export(self, folder: Path) -> None:
        """Write the policy's weights."""
        ...


MakeBatch = Callable[[list[Group], int], Batch]
"""Groups and the step's number → batch."""


@dataclass(frozen=True)
class Stores:
    """Where a run keeps its state and tells of it."""

    checkpoints: Checkpoints
    policies: PolicyFolders
    announcer: Announcer


class Controller:
    """Drives one run.

    Args:
        ctx: The service.
        settings: The learner's settings.
        trainer: The policy in training, in the state that `state` names.
        make_batch: Turns groups into a batch.
        stores: Where the run keeps its state.
        state: The newest checkpoint's state.
        collector: Collects groups from `state` on.
        thread: Runs the trainer, so that the event loop stays free.
    """

    def __init__(
        self,
        ctx: ServiceContext,
        settings: LearnerSettings,
        trainer: Trainer,
        make_batch: MakeBatch,
        stores: Stores,
        state: LearnerState,
        collector: GroupCollector,
        thread: Executor,
    ) -> None:
        self._ctx = ctx
        self._settings = settings
        self._trainer = trainer
        self._make_batch = make_batch
        self._stores = stores
        self._state = state
        self._collector = collector
        self._thread = thread
        self._meter = WaitMeter()
        self._waited_before_s = 0.0

    def gauges(self) -> Mapping[str, float]:
        """What `metrics.expose` offers. A group counts as trained when its step is durable, so that never goes back."""
        collector = self._collector
        return {
            "groups_consumed": self._state.collector.groups_trained + collector.groups_dropped,
            "groups_dropped": collector.groups_dropped,
            "groups_open": collector.open_count,
            "groups_ready": collector.ready_count,
            "policy_version": self._state.policy_version,
            "step": self._state.step,
            "wait_s": self._meter.waited_s,
            "trajectories_late": collector.late_trajectories,
        }

    def telemetry(self) -> Mapping[str, float]:
        """The gauges, and the share of the time since the last call that was spent waiting."""
        return {**self.gauges(), "wait_share": self._meter.share()}

    async def run(self, consumer: RecordConsumer) -> None:
        """Read, collect and step until the service stops. A step that has begun is finished."""
        while not self._ctx.stopping.is_set():
            with self._meter.waiting():
                await self._read(consumer)
            while not self._is_complete and not self._ctx.stopping.is_set():
                groups = self._collector.take(self._settings.groups_per_step, self._state.policy_version)
                if groups is None:
                    break
                await self._step(groups)
            if self._is_complete:
                self._collector.drop_ready(RUN_COMPLETE)

    async def publish(self) -> None:
        """Make sure that the weights of the current state are on disk and announced, whatever was done before."""
        policy = await self._policy()
        await self._announce_until_known(policy, self._state.record)

    @property
    def _is_complete(self) -> bool:
        return 0 < self._settings.max_steps <= self._state.step

    async def _read(self, consumer: RecordConsumer) -> None:
        for one in await consumer.poll():
            self._collector.add(one.partition, one.offset, one.at_us, one.record)
        for (_, partition), position in consumer.positions().items():
            if position >= 0:
                self._collector.advance(partition, position)
        if overdue := self._collector.overdue(now_us()):
            await self._expire(consumer, overdue)

    async def _expire(self, consumer: RecordConsumer, partitions: set[int]) -> None:
        """Close overdue groups, but only where nothing waits unread: after a long pause all is in the log already."""
        try:
            ends = await consumer.end_offsets([(TRAJECTORIES, partition) for partition in partitions])
        except IngestError as error:
            self._ctx.log.warning("deadlines wait for the broker", reason=str(error))
            return
        positions = consumer.positions()
        read = [key[1] for key, end in ends.items() if positions.get(key, -1) >= end]
        self._collector.expire(read, now_us())

    async def _step(self, groups: list[Group]) -> None:
        version = self._state.policy_version
        number = self._state.step + 1
        waited_s = self._meter.waited_s - self._waited_before_s
        self._waited_before_s = self._meter.waited_s
        started = time.monotonic()
        batch = self._make_batch(groups, number)
        metrics = await self._heavy(self._trainer.update, batch)
        updated = time.monotonic()
        snapshot = self._collector.snapshot()
        record = Step(
            run_id=self._settings.run_id,
            step=number,
            policy_id=self._settings.policy_id,
            policy_version=version + 1,
            groups=[group.group_id for group in groups],
            groups_dropped=self._collector.drain_drops(),
            trajectory_ids=[member.trajectory.trajectory_id for group in groups for member in group.members],
            trained_tokens=batch.trained_tokens,
            offsets={str(partition): offset for partition, offset in sorted(snapshot.offsets.items())},
            metrics=metrics | group_metrics(groups, version) | self._control_mark(),
            timings={"wait": waited_s, "update": updated - started},
            at_us=now_us(),
        )
        state = msgspec.structs.replace(self._state, step=number, collector=snapshot, record=record)
        await self._heavy(self._stores.checkpoints.write, state, self._trainer.save)
        self._state = state
        saved = time.monotonic()
        policy = await self._policy()
        timings = {**record.timings, "checkpoint": saved - updated, "export": time.monotonic() - saved}
        await self._announce(policy, msgspec.structs.replace(record, timings=timings))
        self._log_step(record, timings)

    def _control_mark(self) -> dict[str, float]:
        return {"rewards_shuffled": 1.0} if self._settings.shuffle_rewards else {}

    async def _policy(self) -> Policy:
        """The announcement of the current state; its weights are durable when this returns."""
        state = self._state
        folder, digest = await self._heavy(self._weights)
        return Policy(
            policy_id=state.policy_id,
            version=state.policy_version,
            run_id=state.run_id,
            step=state.step,
            weights_uri=folder.as_uri(),
            weights_digest=digest,
            base_model=state.base_model,
            metrics=state.record.metrics if state.record else {},
            created_at_us=now_us(),
        )

    def _weights(self) -> tuple[Path, str]:
        if self._state.step == 0:
            return self._settings.model.absolute(), weights_digest(self._settings.model)
        return self._stores.policies.ensure(self._state.policy_version, self._trainer.export)

    async def _announce(self, policy: Policy, step: Step) -> None:
        try:
            await self._stores.announcer.announce(policy, step)
        except Fenced:
            raise
        except IngestError as error:
            self._ctx.log.warning("announcement failed, asking the log what it has", reason=str(error))
            await self._announce_until_known(policy, step)
        self._stores.policies.prune()

    async def _announce_until_known(self, policy: Policy, step: Step | None) -> None:
        while True:
            try:
                if await self._stores.announcer.announce_once(policy, step):
                    self._ctx.log.info("announced", policy=policy.policy_id, version=policy.version)
                return
            except Fenced:
                raise
            except IngestError as error:
                if self._ctx.stopping.is_set():
                    raise  # the checkpoint has it: the next start announces it
                self._ctx.log.warning("version not announced yet", version=policy.version, reason=str(error))
                await asyncio.sleep(RETRY_S)

    async def _heavy(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def _log_step(self, step: Step, timings: Mapping[str, float]) -> None:
        shown = ("loss", "reward_mean", "delta_mean", "grad_norm", "staleness_max")
        self._ctx.log.info(
            "step",
            step=step.step,
            version=step.policy_version,
            groups=len(step.groups),
            dropped=len(step.groups_dropped),
            tokens=step.trained_tokens,
            **{name: round(step.metrics[name], 5) for name in shown if name in step.metrics},
            **{f"{name}_s": round(seconds, 2) for name, seconds in timings.items()},
        )


def group_metrics(groups: list[Group], version: int) -> dict[str, float]:
    """What a step's groups were like: rewards, ages, what was left out."""
    members = [member for group in groups for member in group.members]
    rewards = [member.reward for member in members]
    ages = [staleness(version, member.oldest_version) for member in members]
    return {
        "reward_mean": sum(rewards) / len(rewards),
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "staleness_mean": sum(ages) / len(ages),
        "staleness_max": float(max(ages)),
        "trajectories": float(len(members)),
        "samples": float(sum(len(member.rows) for member in members)),
        "trajectories_excluded": float(sum(len(group.excluded) for group in groups)),
        "groups_partial": float(sum(group.partial for group in groups)),
    }
