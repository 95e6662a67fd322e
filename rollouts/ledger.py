"""Which tasks are taken, which are done, and what may be committed.

The launcher's memory is the log. The offset committed for a partition of tasks.v1 is that of the oldest task that is
not done. A note goes with it, from which a new launcher learns where in rollouts.v1 it has to read to know every
rollout that is finished and every attempt that was begun:

* `rollouts`: all events of the tasks from the committed offset on lie at or beyond these offsets;
* `ahead`: no task at or beyond this offset of tasks.v1 was begun. It is moved on, with room to spare, *before* a task
  beyond it may begin. So the part that has to be read again stays short however many tasks wait;
* `launched`: training groups before the committed offset.

Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from schemas.topics import ROLLOUT_PARTITIONS

Positions = tuple[int, ...]
"""One offset for each partition of rollouts.v1."""

START: Positions = (0,) * ROLLOUT_PARTITIONS
_ROOM = 256


class Note(msgspec.Struct, frozen=True):
    """Metadata of a committed offset, as JSON."""

    rollouts: Positions = START
    launched: int = 0
    ahead: int = 0


@dataclass
class _Taken:
    events_from: Positions
    training: bool
    done: bool = False


@dataclass
class _Partition:
    next_offset: int
    launched: int
    restored: Positions
    """Where events of the tasks that an earlier launcher may have begun lie."""
    restored_ahead: int
    """Such tasks lie below this offset."""
    taken: dict[int, _Taken] = field(default_factory=dict)
    committed: int = -1
    ahead: int = 0


class TaskLedger:
    """Tasks of the partitions that this launcher owns."""

    def __init__(self) -> None:
        self._partitions: dict[int, _Partition] = {}

    def assigned(self, partition: int, offset: int, note: Note, end: int) -> None:
        """A partition is ours from its committed offset on; it ends at `end`: what comes later nobody has begun."""
        begun_below = min(note.ahead, end)
        self._partitions[partition] = _Partition(
            offset, note.launched, note.rollouts, begun_below, committed=offset, ahead=note.ahead
        )

    def revoked(self, partition: int) -> None:
        """A partition is no longer ours."""
        self._partitions.pop(partition, None)

    def owns(self, partition: int) -> bool:
        """Whether a partition is ours."""
        return partition in self._partitions

    def take(self, partition: int, offset: int, *, training: bool, events_from: Positions, begun: bool) -> None:
        """A task was read.

        Args:
            partition: of tasks.v1.
            offset: in it.
            training: whether its group counts at the gate.
            events_from: offsets of rollouts.v1 that were written already.
            begun: events of it were found at the start.
        """
        state = self._partitions[partition]
        state.taken[offset] = _Taken(state.restored if begun else events_from, training)
        state.next_offset = max(state.next_offset, offset + 1)

    def done(self, partition: int, offset: int) -> None:
        """All rollouts of a task are finished."""
        state = self._partitions.get(partition)
        if state is not None and offset in state.taken:
            state.taken[offset].done = True

    def launched_before(self) -> int:
        """Training groups before the oldest open tasks of all our partitions."""
        return sum(state.launched for state in self._partitions.values())

    def must_commit(self) -> bool:
        """Whether a commit has to be in the log before the tasks taken last may begin."""
        return any(state.next_offset > state.ahead for state in self._partitions.values())

    def to_commit(self, events_until: Positions) -> dict[int, tuple[int, Note]]:
        """What moved since it was last committed: partition → offset and note.

        Args:
            events_until: offsets of rollouts.v1 that are written by now; events of tasks not read yet come after.
        """
        found: dict[int, tuple[int, Note]] = {}
        for number, state in self._partitions.items():
            for offset in sorted(state.taken):
                if not state.taken[offset].done:
                    break
                state.launched += state.taken.pop(offset).training
            position = min(state.taken, default=state.next_offset)
            ahead = state.next_offset + _ROOM if state.next_offset > state.ahead else state.ahead
            if (position, ahead) != (state.committed, state.ahead):
                found[number] = (position, Note(_events_from(state, events_until), state.launched, ahead))
        return found

    def committed(self, positions: Mapping[int, tuple[int, Note]]) -> None:
        """These offsets and notes are in the log."""
        for number, (offset, note) in positions.items():
            if number in self._partitions:
                self._partitions[number].committed = offset
                self._partitions[number].ahead = note.ahead


def read_note(metadata: str) -> Note | None:
    """The note of a committed offset; None when it cannot be understood."""
    try:
        note = msgspec.json.decode(metadata, type=Note)
    except msgspec.DecodeError:
        return None
    return note if len(note.rollouts) == ROLLOUT_PARTITIONS else None


def write_note(note: Note) -> str:
    """The note as metadata."""
    return msgspec.json.encode(note).decode()


def lowest(positions: Iterable[Positions]) -> Positions:
    """The lowest offset of each partition."""
    return tuple(min(column) for column in zip(*positions, strict=True))


def _events_from(state: _Partition, events_until: Positions) -> Positions:
    lower_bounds = [taken.events_from for taken in state.taken.values()]
    if state.next_offset < state.restored_ahead:  # tasks that may have been begun before are still to be read
        lower_bounds.append(state.restored)
    return lowest(lower_bounds or [events_until])
