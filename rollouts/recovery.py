"""What an earlier launcher had done already, read from rollouts.v1."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ingest.errors import OffsetLost
from ingest.kafka.consumer import EARLIEST, RecordConsumer
from ingest.kafka.settings import KafkaSettings
from rollouts.ledger import START, Note, Positions, lowest, read_note
from schemas import RolloutEvent, RolloutEventKind
from schemas.topics import ROLLOUTS, TASKS


@dataclass(frozen=True)
class Known:
    """The newest that the log tells of a rollout."""

    attempt: int
    """The highest attempt that was begun; 0: none."""
    finished: bool


UNKNOWN = Known(0, finished=False)


@dataclass(frozen=True)
class Recovered:
    """What a launcher knows of the partitions that it was just given."""

    notes: Mapping[int, tuple[int, Note]]
    """Partition of tasks.v1 → offset to begin at, and its note."""
    ends: Mapping[int, int]
    """Partition of tasks.v1 → where it ended."""
    rollouts: Mapping[str, Known]
    """Rollouts by id, of the tasks from those offsets on (and some of earlier ones)."""
    until: Positions
    """Where rollouts.v1 ended."""


def fold(events: Iterable[RolloutEvent], known: dict[str, Known]) -> None:
    """Add events, in the order of the log, to what is known, by rollout id."""
    for event in events:
        before = known.get(event.rollout_id, UNKNOWN)
        begun = 0 if event.kind is RolloutEventKind.QUEUED else event.attempt
        finished = before.finished or event.kind is RolloutEventKind.FINISHED
        known[event.rollout_id] = Known(max(before.attempt, begun), finished)


async def recover(kafka: KafkaSettings, tasks: RecordConsumer, partitions: Iterable[int]) -> Recovered:
    """Read the notes of these partitions of tasks.v1 and the events that they point at.

    Where nothing was committed, all events are read: offsets may have been deleted under a log that is still there.
    """
    wanted = [(TASKS, partition) for partition in partitions]
    committed = await tasks.committed(wanted)
    ends = await tasks.end_offsets(wanted)
    notes = {partition: _note(committed[TASKS, partition], ends[TASKS, partition]) for _topic, partition in wanted}
    start = lowest([note.rollouts for _offset, note in notes.values()] or [START])
    rollouts, until = await _read_events(kafka, start)
    if not rollouts:  # nothing was begun: there is nothing to keep in mind
        notes = {number: (at, Note(until, note.launched, ahead=at)) for number, (at, note) in notes.items()}
    return Recovered(notes, {number: ends[TASKS, number] for number in notes}, rollouts, until)


def _note(committed: tuple[int, str] | None, end: int) -> tuple[int, Note]:
    if committed is None:
        return 0, Note(ahead=end)
    offset, metadata = committed
    return offset, read_note(metadata) or Note(ahead=end)


async def _read_events(kafka: KafkaSettings, start: Positions) -> tuple[dict[str, Known], Positions]:
    """What the events from `start` on tell, and where they end."""
    try:
        return await _read_from(kafka, start)
    except OffsetLost:  # retention took some of them: what is left is all there is to know
        return await _read_from(kafka, START)


async def _read_from(kafka: KafkaSettings, start: Positions) -> tuple[dict[str, Known], Positions]:
    positions = {(ROLLOUTS, partition): offset or EARLIEST for partition, offset in enumerate(start)}
    known: dict[str, Known] = {}
    async with RecordConsumer.assign(kafka, positions) as consumer:
        ends = await consumer.end_offsets(positions)
        while any(consumer.positions()[key] < end for key, end in ends.items()):
            fold((received.record for received in await consumer.poll(max_records=5000)), known)
    return known, tuple(ends[ROLLOUTS, partition] for partition in range(len(start)))
