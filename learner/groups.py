"""Trajectories → whole groups, in the order of the log. Pure: no clock, no I/O.

A group is *open* until its last member arrives or its deadline passes; then it is *ready*, or dropped with a reason.
Ready groups are trained or dropped; both are *settled*. What must survive a restart is small: for each partition the
oldest offset that an open or ready group still needs, and the settled groups that have records at or beyond it.
Reading again from there leads to the same groups, and to none twice.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from learner.errors import MisalignedSample
from learner.rows import Row, RowRules, rows_of
from learner.staleness import admits
from schemas import Trajectory

DEADLINE = "deadline"
RUN_COMPLETE = "run_complete"
STALE = "stale"
UNTRAINABLE = "untrainable"
ZERO_VARIANCE = "zero_variance"

# Rewards closer than this do not differ: divided by their deviation they would train on rounding errors.
_SAME_REWARD = 1e-9


@dataclass(frozen=True)
class GroupRules:
    """What may be trained."""

    policy_id: str
    rows: RowRules
    deadline_us: int
    keep_partial: bool
    """At the deadline: train what is there, if two trainable members differ."""
    max_staleness: int
    first_version: int
    """Oldest version of this run; tokens of older ones were sampled by another lineage of weights."""


@dataclass(frozen=True)
class Member:
    """A trajectory that can be trained, with its rows."""

    trajectory: Trajectory
    reward: float
    oldest_version: int
    rows: list[Row]


@dataclass(frozen=True)
class Group:
    """A group that can be trained: two members or more, whose rewards differ."""

    group_id: str
    members: list[Member]
    """In the order of their group index."""
    excluded: dict[str, str]
    """Trajectories left out, and why."""
    partial: bool
    """Closed by the deadline, with members missing."""

    @property
    def oldest_version(self) -> int:
        """Policy version of the oldest trained token."""
        return min(member.oldest_version for member in self.members)


class Settled(msgspec.Struct):
    """A group that was trained or dropped."""

    partition: int
    last_offset: int
    """Its newest record that was seen."""
    missing: int
    """Members that were not seen yet; they are passed over when they come."""


class CollectorState(msgspec.Struct, frozen=True):
    """What a collector needs to go on after a restart."""

    offsets: dict[int, int] = {}
    """For each partition, the offset to read from."""
    settled: dict[str, Settled] = {}
    """Groups that must not be used again when their records are met from there on."""
    groups_trained: int = 0
    groups_dropped: int = 0


@dataclass
class _Open:
    partition: int
    first_offset: int
    last_offset: int
    first_at_us: int
    size: int
    members: dict[str, Trajectory] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class _Ready:
    """A ready group's place in the log: where its last member stands."""

    closed_at_us: int
    partition: int
    last_offset: int
    first_offset: int = field(compare=False)
    missing: int = field(compare=False)
    group: Group = field(compare=False)


class GroupCollector:
    """Collects the groups of one policy.

    Args:
        rules: What may be trained.
        state: Where an earlier collector left off.
    """

    def __init__(self, rules: GroupRules, state: CollectorState | None = None) -> None:
        state = state or CollectorState()
        self._rules = rules
        self._next = dict(state.offsets)
        self._settled = {name: msgspec.structs.replace(entry) for name, entry in state.settled.items()}
        self._open: dict[str, _Open] = {}
        self._ready: list[_Ready] = []
        self._drops: dict[str, str] = {}
        self.groups_trained = state.groups_trained
        self.groups_dropped = state.groups_dropped
        self.late_trajectories = 0

    @property
    def open_count(self) -> int:
        """Groups that wait for members."""
        return len(self._open)

    @property
    def ready_count(self) -> int:
        """Groups that wait for a step."""
        return len(self._ready)

    def add(self, partition: int, offset: int, at_us: int, trajectory: Trajectory) -> None:
        """Take in the next record of a partition; `at_us` is the log's time of it."""
        self.advance(partition, offset + 1)
        if trajectory.evaluation or trajectory.policy_id != self._rules.policy_id:
            return
        name = trajectory.group_id
        if settled := self._settled.get(name):
            self._add_late(settled, offset)
            return
        group = self._open.get(name)
        if group is None:
            group = self._open[name] = _Open(partition, offset, offset, at_us, max(1, trajectory.group_size))
        group.members.setdefault(trajectory.rollout_id, trajectory)
        group.last_offset = offset
        if len(group.members) >= group.size:
            self._close(name, at_us, partial=False)

    def advance(self, partition: int, next_offset: int) -> None:
        """Everything of the partition below `next_offset` was added, or is no record."""
        self._next[partition] = max(next_offset, self._next.get(partition, 0))

    def overdue(self, now_us: int) -> set[int]:
        """Partitions with groups whose deadline has passed."""
        return {group.partition for group in self._open.values() if self._is_overdue(group, now_us)}

    def expire(self, partitions: Iterable[int], now_us: int) -> None:
        """Close the overdue groups of partitions that were read to their end: no member waits in the log unread."""
        wanted = set(partitions)
        for name, group in list(self._open.items()):
            if group.partition in wanted and self._is_overdue(group, now_us):
                self._close(name, now_us, partial=True)

    def take(self, count: int, version: int) -> list[Group] | None:
        """The next `count` groups in log order that are fresh enough for the learner's `version`.

        Stale ones on the way are dropped. None, and nothing is taken, while there are fewer.
        """
        taken: list[_Ready] = []
        while self._ready and len(taken) < count:
            entry = heapq.heappop(self._ready)
            oldest = entry.group.oldest_version
            if oldest >= self._rules.first_version and admits(version, oldest, self._rules.max_staleness):
                taken.append(entry)
            else:
                self._drop_ready(entry, STALE)
        if len(taken) < count:
            for entry in taken:
                heapq.heappush(self._ready, entry)
            return None
        for entry in taken:
            self._settle(entry)
            self.groups_trained += 1
        return [entry.group for entry in taken]

    def drop_ready(self, reason: str) -> None:
        """Drop every group that waits for a step."""
        while self._ready:
            self._drop_ready(heapq.heappop(self._ready), reason)

    def drain_drops(self) -> dict[str, str]:
        """Groups dropped since the last call, and why."""
        drops, self._drops = self._drops, {}
        return drops

    def snapshot(self) -> CollectorState:
        """The state to keep, as of everything added so far."""
        offsets = dict(self._next)
        for needed in (*self._open.values(), *self._ready):
            offsets[needed.partition] = min(offsets[needed.partition], needed.first_offset)
        self._settled = {
            name: entry
            for name, entry in self._settled.items()
            if entry.missing > 0 or entry.last_offset >= offsets[entry.partition]
        }
        settled = {name: msgspec.structs.replace(entry) for name, entry in self._settled.items()}
        return CollectorState(offsets, settled, self.groups_trained, self.groups_dropped)

    def _is_overdue(self, group: _Open, now_us: int) -> bool:
        return now_us - group.first_at_us > self._rules.deadline_us

    def _add_late(self, settled: Settled, offset: int) -> None:
        if offset <= settled.last_offset:
            return  # read again after a restart
        settled.last_offset = offset
        settled.missing -= 1
        self.late_trajectories += 1

    def _close(self, name: str, at_us: int, *, partial: bool) -> None:
        opened = self._open.pop(name)
        missing = opened.size - len(opened.members)
        group = _judge(name, opened.members.values(), self._rules, partial=partial)
        if isinstance(group, Group):
            entry = _Ready(at_us, opened.partition, opened.last_offset, opened.first_offset, missing, group)
            heapq.heappush(self._ready, entry)
            return
        self._settled[name] = Settled(opened.partition, opened.last_offset, missing)
        self._count_drop(name, group)

    def _settle(self, entry: _Ready) -> None:
        self._settled[entry.group.group_id] = Settled(entry.partition, entry.last_offset, entry.missing)

    def _drop_ready(self, entry: _Ready, reason: str) -> None:
        self._settle(entry)
        self._count_drop(entry.group.group_id, reason)

    def _count_drop(self, name: str, reason: str) -> None:
        self._drops[name] = reason
        self.groups_dropped += 1


def _judge(name: str, trajectories: Iterable[Trajectory], rules: GroupRules, *, partial: bool) -> Group | str:
    """The group, or the reason why there is none."""
    if partial and not rules.keep_partial:
        return DEADLINE
    members, excluded = [], {}
    for trajectory in sorted(trajectories, key=lambda t: (t.group_index, t.rollout_id)):
        member = _member(trajectory, rules.rows)
        if isinstance(member, Member):
            members.append(member)
        else:
            excluded[trajectory.trajectory_id] = member
    if len(members) < 2:
        return DEADLINE if partial else UNTRAINABLE
    rewards = [member.reward for member in members]
    if max(rewards) - min(rewards) <= _SAME_REWARD:
        return ZERO_VARIANCE
    return Group(name, members, excluded, partial)


def _member(trajectory: Trajectory, rules: RowRules) -> Member | str:
    """The member, or the reason why the trajectory is left out."""
    if not trajectory.trainable:
        return trajectory.reason or "not trainable"
    if trajectory.reward is None or not math.isfinite(trajectory.reward):
        return "no reward"
    if trajectory.policy_version_min is None:
        return "no policy version"
    try:
        rows = rows_of(trajectory, rules)
    except MisalignedSample as error:
        return str(error)
    if not rows:
        return "no trained token"
    return Member(trajectory, trajectory.reward, trajectory.policy_version_min, rows)
