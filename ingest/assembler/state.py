"""What the assembler knows of one input partition: a function of a stretch of the log, and nothing else.

Records go in with their offsets; complete rollouts come out; `progress` says where a restart must begin to read, and
which rollouts it will meet there that are already done. Feeding the log from there into a fresh state gives the same
trajectories again, without those that were written. Time here is the log's own: record timestamps.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ingest.assembler.attempt import Attempt
from schemas import AssemblerProgress, Completion, RolloutEvent, RolloutEventKind

RECENT = 256
"""Finished rollouts that are remembered though no restart would meet them: late records of theirs are recognised."""


class Offsets(NamedTuple):
    """A place on both inputs of a partition."""

    rollouts: int
    completions: int


NOWHERE = Offsets(-1, -1)


@dataclass(slots=True)
class OpenRollout:
    """A rollout whose trajectory is not written yet. Offsets are None until a record of that topic was read."""

    rollout_id: str
    first_event: int | None = None
    first_completion: int | None = None
    last: Offsets = NOWHERE
    at_us: int = 0
    """Timestamp of its newest record."""
    attempts: dict[int, Attempt] = field(default_factory=dict)
    finished: RolloutEvent | None = None

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return sum(attempt.size_bytes for attempt in self.attempts.values())


@dataclass(slots=True)
class Counters:
    """What was passed over, since the partition was taken on."""

    late: int = 0
    """Completions that came after their rollout's trajectory."""
    doubled: int = 0
    """Records that were there already."""
    abandoned: int = 0
    """Rollouts given up because nothing was heard of them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What keeps the state small."""

    rollout_max_bytes: int
    """A rollout with more tokens than this is not trained."""
    abandon_after_us: int
    """Log time without a record after which an unfinished rollout is given up."""
    orphan_after_us: int
    """The same for completions of a rollout of which no event was ever read."""
    orphan_max_bytes: int
    """Completions are not read further while this much of them waits for events that were not read yet."""
    waiting_max_count: int
    """Events are not read further while this many finished rollouts wait for their completions."""


class PartitionState:
    """The open rollouts of one partition, and the finished ones that a restart would meet again."""

    def __init__(self, progress: AssemblerProgress, ends: Offsets, bounds: Bounds) -> None:
        """Start from a progress record.

        Args:
            progress: the partition's newest one; a default record when there is none.
            ends: end offsets of both inputs now. The progress was written below them.
            bounds: what keeps the state small.
        """
        self.partition = progress.partition
        self.position = Offsets(progress.rollouts_offset, progress.completions_offset)
        self.open: dict[str, OpenRollout] = {}
        self.counters = Counters()
        self._clocks = Offsets(0, 0)  # newest timestamp read from each input
        self._bounds = bounds
        self._ends = ends
        # Where their last records lie is not in the progress; they lie below the ends of that time, hence of now.
        self._done = dict.fromkeys(progress.finished, Offsets(ends.rollouts - 1, ends.completions - 1))
        self._waiting: list[tuple[int, int, str]] = []  # heap: completions offset needed, the event's offset, rollout
        self._unbounded: list[tuple[int, str]] = []  # the event names no offset: the end known next is taken

    @property
    def waiting_count(self) -> int:
        """Finished rollouts whose completions were not all read yet."""
        return len(self._waiting) + len(self._unbounded)

    @property
    def has_complete(self) -> bool:
        """Whether `complete` has something to give."""
        return bool(self._waiting) and self._waiting[0][0] <= self.position.completions

    @property
    def lag_count(self) -> int:
        """Records of both inputs that were not read, when the ends were last known."""
        return sum(max(0, end - position) for end, position in zip(self._ends, self.position, strict=True))

    @property
    def orphan_bytes(self) -> int:
        """What completions take whose rollout no event told of yet."""
        return sum(r.size_bytes for r in self.open.values() if r.first_event is None)

    def add_event(self, offset: int, event: RolloutEvent, at_us: int) -> None:
        """Take in one record of rollouts.v1."""
        self._clocks = self._clocks._replace(rollouts=max(self._clocks.rollouts, at_us))
        if event.rollout_id in self._done:
            self._seen_again(event.rollout_id, NOWHERE._replace(rollouts=offset))
            self.counters.doubled += event.kind is RolloutEventKind.FINISHED
            return
        rollout = self._rollout(event.rollout_id, at_us)
        rollout.first_event = offset if rollout.first_event is None else rollout.first_event
        rollout.last = rollout.last._replace(rollouts=offset)
        if event.kind is not RolloutEventKind.FINISHED:
            return
        if rollout.finished is not None:
            self.counters.doubled += 1
            return
        rollout.finished = event
        if event.completions_end_offset is None:
            self._unbounded.append((offset, event.rollout_id))
        else:
            heapq.heappush(self._waiting, (event.completions_end_offset, offset, event.rollout_id))

    def add_completion(self, offset: int, completion: Completion, at_us: int) -> bool:
        """Take in one record of completions.v1; False when it came after its rollout's trajectory."""
        self._clocks = self._clocks._replace(completions=max(self._clocks.completions, at_us))
        if completion.rollout_id in self._done:
            self._seen_again(completion.rollout_id, NOWHERE._replace(completions=offset))
            self.counters.late += 1
            return False
        rollout = self._rollout(completion.rollout_id, at_us)
        rollout.first_completion = offset if rollout.first_completion is None else rollout.first_completion
        rollout.last = rollout.last._replace(completions=offset)
        attempt = rollout.attempts.setdefault(completion.attempt, Attempt())
        self.counters.doubled += not attempt.add(offset, completion, self._bounds.rollout_max_bytes)
        return True

    def advance(self, position: Offsets) -> None:
        """Say that everything below `position` was taken in."""
        self.position = position

    def ends_are(self, ends: Offsets) -> None:
        """Say where both inputs end. Finished rollouts that name no offset need the completions up to there."""
        self._ends = ends
        for offset, rollout_id in self._unbounded:
            heapq.heappush(self._waiting, (ends.completions, offset, rollout_id))
        self._unbounded.clear()

    def complete(self) -> Iterator[tuple[RolloutEvent, Attempt]]:
        """Take out the rollouts that are finished and whose completions were all read, in the order of their end.

        What lies at or after the needed offset came after the harness's end and does not count, read or not.
        """
        while self.has_complete:
            end, _, rollout_id = heapq.heappop(self._waiting)
            rollout = self.open.pop(rollout_id, None)
            if rollout is None or rollout.finished is None:
                continue  # given up while it waited
            self._done[rollout_id] = rollout.last
            yield rollout.finished, rollout.attempts.get(rollout.finished.attempt, Attempt()).below(end)

    def abandon(self) -> list[str]:
        """Give up rollouts of which nothing was heard for too long: they would hold the progress back for ever.

        An input that is read late must not make a rollout look silent, so the clock that is behind counts.
        """
        now_us = min(self._clocks)
        limits = (self._bounds.abandon_after_us, self._bounds.orphan_after_us)
        old = [
            rollout.rollout_id
            for rollout in self.open.values()
            if now_us - rollout.at_us > limits[rollout.first_event is None]
        ]
        for rollout_id in old:
            del self.open[rollout_id]
        self.counters.abandoned += len(old)
        return old

    def must_wait(self) -> Literal["rollouts", "completions"] | None:
        """The input that must not be read further for now, so that memory stays bounded.

        Never the one on which the other depends: finished rollouts wait for completions alone, and completions
        without an event only while there are events to read.
        """
        if self.waiting_count > self._bounds.waiting_max_count:
            return "rollouts"
        behind = self.position.rollouts < self._ends.rollouts
        if behind and self.orphan_bytes > self._bounds.orphan_max_bytes:
            return "completions"
        return None

    def progress(self) -> AssemblerProgress:
        """Where a restart must begin, now that everything complete was written."""
        start = Offsets(
            min(
                (r.first_event for r in self.open.values() if r.first_event is not None), default=self.position.rollouts
            ),
            min(
                (r.first_completion for r in self.open.values() if r.first_completion is not None),
                default=self.position.completions,
            ),
        )
        self._forget(start)
        return AssemblerProgress(
            partition=self.partition,
            rollouts_offset=start.rollouts,
            completions_offset=start.completions,
            finished=list(self._done),
        )

    def _rollout(self, rollout_id: str, at_us: int) -> OpenRollout:
        rollout = self.open.get(rollout_id)
        if rollout is None:
            rollout = self.open[rollout_id] = OpenRollout(rollout_id)
        rollout.at_us = max(rollout.at_us, at_us)
        return rollout

    def _seen_again(self, rollout_id: str, at: Offsets) -> None:
        last = self._done[rollout_id]
        self._done[rollout_id] = Offsets(max(last.rollouts, at.rollouts), max(last.completions, at.completions))

    def _forget(self, start: Offsets) -> None:
        """Drop finished rollouts with no record at or after `start`, all but the most recent ones."""
        for rollout_id in list(self._done)[:-RECENT]:
            last = self._done[rollout_id]
            if last.rollouts < start.rollouts and last.completions < start.completions:
                del self._done[rollout_id]
