"""Turns tasks into running rollouts: what may start, when, and what follows from how it ended.

A task becomes a group of `group_size` rollouts. At most `max_running` rollouts run at a time; a training group starts
only when the staleness gate lets it; evaluation groups never wait there. Rollouts that the platform failed are tried
again, each other end is final. A task that cannot be launched ends at once, each of its rollouts with
`harness_error` and the reason, so that nobody waits for its group.
"""

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from rollouts.attempt import AttemptEnd, AttemptRunner
from rollouts.calls import CallTail
from rollouts.gate import StalenessGate
from rollouts.ledger import TaskLedger
from rollouts.lifecycle import Life
from rollouts.metrics import LauncherMetrics
from rollouts.options import Problem
from rollouts.recovery import UNKNOWN, Known
from rollouts.runtimes.base import Runtime
from rollouts.settings import LauncherSettings
from rollouts.tasksets.check import MAX_GROUP_SIZE, problems
from rollouts.teller import EventTeller
from schemas import EndReason, Task
from schemas.ids import group_id, rollout_id

_log = structlog.get_logger(__name__)

_TICK_S = 0.5
_REMEMBERED_GROUPS = 20_000
Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


@dataclass(eq=False)
class Group:
    """A task under way."""

    task: Task
    partition: int
    offset: int
    group_id: str
    known: Mapping[str, Known]
    problems: tuple[Problem, ...] = ()
    """Why it cannot be launched."""
    open_count: int = 0
    """Rollouts that are not finished."""
    dropped: bool = False
    """Its partition belongs to another launcher now."""

    @property
    def training(self) -> bool:
        """Whether it passes the staleness gate."""
        return not self.task.evaluation


@dataclass(eq=False)
class Item:
    """A rollout that is to run."""

    group: Group
    life: Life
    attempt: int
    failures: int = 0


@dataclass
class Counts:
    """What the launcher has in hand."""

    running: int = 0
    queued: int = 0
    groups_outstanding: int = 0


@dataclass
class _Hands:
    waiting: deque[Group] = field(default_factory=deque)
    ready: deque[Item] = field(default_factory=deque)
    retrying: set[Item] = field(default_factory=set)
    running: dict[asyncio.Task[None], Item] = field(default_factory=dict)
    open_groups: dict[str, Group] = field(default_factory=dict)
    launched: Counter[int] = field(default_factory=Counter)
    """Training groups launched, by partition of tasks.v1."""


class Launcher:
    """Decides what runs. Knows nothing of processes, nor of how tasks are read and committed."""

    def __init__(
        self,
        settings: LauncherSettings,
        attempts: AttemptRunner,
        runtime: Runtime,
        ledger: TaskLedger,
        gate: StalenessGate,
        teller: EventTeller,
        calls: CallTail,
        metrics: LauncherMetrics,
    ) -> None:
        self._settings = settings
        self._attempts = attempts
        self._runtime = runtime
        self._ledger = ledger
        self._gate = gate
        self._teller = teller
        self._calls = calls
        self._metrics = metrics
        self._hands = _Hands()
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._wake = asyncio.Event()

    # From the intake

    def room(self) -> int:
        """How many further tasks may be taken."""
        return self._settings.tasks_ahead - len(self._hands.waiting)

    def assigned(self, partition: int, launched: int) -> None:
        """A partition is ours; so many of its training groups were launched before."""
        self._hands.launched[partition] = launched

    def take(self, task: Task, partition: int, offset: int, known: Mapping[str, Known]) -> None:
        """Take a task on. `known` has what earlier launchers did of it, by rollout id."""
        name = group_id(task.taskset, task.task_id, task.epoch)
        group = Group(task, partition, offset, name, known, tuple(problems(task)))
        if group.group_id in self._hands.open_groups or group.group_id in self._recent:
            self._pass_over(group, "the same task, task set and epoch were produced before")
        elif not 1 <= task.group_size <= MAX_GROUP_SIZE:
            self._pass_over(group, f"group_size must be 1 to {MAX_GROUP_SIZE}, not {task.group_size}")
        else:
            self._hands.open_groups[group.group_id] = group
            self._hands.waiting.append(group)
            self._wake.set()

    async def drop(self, partitions: Iterable[int]) -> None:
        """Partitions go to another launcher: stop what runs of them, forget the rest."""
        gone = set(partitions)
        hands = self._hands
        for group in [group for group in hands.open_groups.values() if group.partition in gone]:
            group.dropped = True
            del hands.open_groups[group.group_id]
        hands.waiting = deque(group for group in hands.waiting if not group.dropped)
        hands.ready = deque(item for item in hands.ready if not item.group.dropped)
        hands.retrying = {item for item in hands.retrying if not item.group.dropped}
        for partition in gone:
            del hands.launched[partition]
        await self._stop(running for running, item in hands.running.items() if item.group.dropped)

    # While it runs

    async def dispatch(self, spawn: Spawn) -> None:
        """Start what may start, until cancelled; `spawn` runs a rollout."""
        while True:
            self._wake.clear()
            while len(self._hands.running) < self._settings.max_running and (item := self._next_item()):
                running = spawn(self._rollout(item))
                self._hands.running[running] = item
                running.add_done_callback(self._ended)
            try:
                async with asyncio.timeout(_TICK_S):
                    await self._wake.wait()
            except TimeoutError:
                continue  # the gate may have opened with time

    async def stop(self) -> None:
        """End all rollouts now. They stay unfinished in the log and run again at the next start."""
        await self._stop(list(self._hands.running))

    def wake(self) -> None:
        """Look again at what may start."""
        self._wake.set()

    def counts(self) -> Counts:
        """Figures of this moment."""
        hands = self._hands
        queued = len(hands.ready) + len(hands.retrying) + sum(group.task.group_size for group in hands.waiting)
        return Counts(len(hands.running), queued, len(hands.open_groups) - len(hands.waiting))

    def launched(self) -> int:
        """Training groups launched from our partitions, by whichever launcher."""
        return self._hands.launched.total()

    # Inside

    def _ended(self, running: asyncio.Task[None]) -> None:
        del self._hands.running[running]
        self._wake.set()

    async def _stop(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        stopping = list(tasks)
        for task in stopping:
            task.cancel()
        if stopping:
            await asyncio.wait(stopping)

    def _next_item(self) -> Item | None:
        while not self._hands.ready:
            group = self._next_group()
            if group is None:
                return None
            self._open(group)
        return self._hands.ready.popleft()

    def _next_group(self) -> Group | None:
        """The oldest waiting group that may start."""
        waiting = self._hands.waiting
        allowed: bool | None = None
        for index, group in enumerate(waiting):
            if group.training and not self._is_settled(group):
                allowed = self._gate_open() if allowed is None else allowed
                if not allowed:
                    continue
            del waiting[index]
            return group
        return None

    def _gate_open(self) -> bool:
        self._gate.launched = self.launched()
        running = sum(group.training for group in self._hands.open_groups.values())
        waiting = sum(group.training for group in self._hands.waiting)
        return self._gate.may_launch(time.monotonic(), running_groups=running - waiting)

    def _is_settled(self, group: Group) -> bool:
        """Whether every rollout of it was finished by an earlier launcher."""
        names = (rollout_id(group.group_id, index) for index in range(group.task.group_size))
        return bool(group.known) and all(group.known.get(name, UNKNOWN).finished for name in names)

    def _open(self, group: Group) -> None:
        """Begin a group: queue the rollouts of it that are not finished yet."""
        if group.training:
            self._hands.launched[group.partition] += 1
        items: list[Item] = []
        for index in range(group.task.group_size):
            life = Life(group.task, group.group_id, index, node=self._runtime.node)
            known = group.known.get(life.rollout_id, UNKNOWN)
            if not known.finished:
                items.append(Item(group, life, known.attempt + 1))
        group.open_count = len(items)
        if not items:
            self._close(group)
            return
        if group.problems:
            why = str(group.problems[0])
            _log.warning("task refused", task_id=group.task.task_id, taskset=group.task.taskset, why=why)
        for item in items:
            self._teller.tell_soon(item.life.queued())
        self._hands.ready.extend(items)

    async def _rollout(self, item: Item) -> None:
        """Run an item's next attempt, and tell its end or queue it again."""
        end = await (self._refuse(item) if item.group.problems else self._attempt(item))
        if end.reason is EndReason.INFRASTRUCTURE:
            item.failures += 1
            if item.failures < self._settings.attempts:
                self._retry_later(item, end)
                return
        event = item.life.finished(end.reason, end.completions_end_offset, attempt=item.attempt, message=end.message)
        await self._teller.tell(event)
        self._metrics.finished(end.reason)
        await self._tidy(item, end.reason)
        item.group.open_count -= 1
        if item.group.open_count == 0:
            self._close(item.group)

    async def _refuse(self, item: Item) -> AttemptEnd:
        end_offset = await self._calls.end_offset(item.life.rollout_id)
        return AttemptEnd(EndReason.HARNESS_ERROR, "; ".join(map(str, item.group.problems)), end_offset)

    async def _attempt(self, item: Item) -> AttemptEnd:
        if item.attempt > 1 and self._settings.keep != "all":
            await self._runtime.discard(item.life.rollout_id, item.attempt - 1)
        return await self._attempts.run(item.group.task, item.life, item.attempt)

    async def _tidy(self, item: Item, reason: EndReason) -> None:
        keep = self._settings.keep
        if keep == "none" or (keep == "failed" and reason is EndReason.COMPLETED):
            await self._runtime.discard(item.life.rollout_id, item.attempt)

    def _retry_later(self, item: Item, end: AttemptEnd) -> None:
        wait_s = self._settings.retry_backoff_s * 2 ** (item.failures - 1)
        _log.warning(
            "attempt failed, tried again",
            rollout_id=item.life.rollout_id,
            attempt=item.attempt,
            why=end.message,
            wait_s=wait_s,
        )
        self._metrics.retried()
        item.attempt += 1
        self._hands.retrying.add(item)
        asyncio.get_running_loop().call_later(wait_s, self._requeue, item)

    def _requeue(self, item: Item) -> None:
        if item in self._hands.retrying:
            self._hands.retrying.remove(item)
            self._hands.ready.appendleft(item)
            self._wake.set()

    def _close(self, group: Group) -> None:
        """All rollouts of a group are finished."""
        if group.dropped:
            return
        del self._hands.open_groups[group.group_id]
        self._recent[group.group_id] = None
        if len(self._recent) > _REMEMBERED_GROUPS:
            self._recent.popitem(last=False)
        self._ledger.done(group.partition, group.offset)
        self._wake.set()

    def _pass_over(self, group: Group, why: str) -> None:
        _log.warning(
            "task passed over", task_id=group.task.task_id, taskset=group.task.taskset, epoch=group.task.epoch, why=why
        )
        self._ledger.done(group.partition, group.offset)
