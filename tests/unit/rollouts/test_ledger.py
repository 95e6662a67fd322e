"""The ledger, checked against a model of the log: after any kill, a restart knows every event that matters."""

from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.ledger import START, Note, TaskLedger, read_note, write_note

AHEAD = 256


def test_the_oldest_open_task_is_committed() -> None:
    ledger = TaskLedger()
    ledger.assigned(0, 10, Note(START, launched=3, ahead=1000), end=500)
    for offset, until in ((10, 1), (11, 2), (12, 3)):
        ledger.take(0, offset, training=True, events_from=(until,) * 4, begun=False)
    ledger.done(0, 11)
    assert ledger.to_commit((9,) * 4) == {}
    ledger.done(0, 10)
    # tasks below `ahead` that were not read yet may have been begun: their events lie from START on
    assert ledger.to_commit((9,) * 4) == {0: (12, Note(START, launched=5, ahead=1000))}


def test_once_all_that_was_there_is_read_nothing_old_is_needed() -> None:
    ledger = TaskLedger()
    ledger.assigned(0, 10, Note(START, launched=0, ahead=1000), end=11)
    ledger.take(0, 10, training=True, events_from=START, begun=True)
    ledger.done(0, 10)
    assert ledger.to_commit((9,) * 4) == {0: (11, Note((9,) * 4, launched=1, ahead=1000))}


def test_what_was_committed_is_not_committed_again() -> None:
    ledger = TaskLedger()
    ledger.assigned(0, 0, Note(ahead=0), end=1)
    ledger.take(0, 0, training=False, events_from=(1, 2, 3, 4), begun=False)
    first = ledger.to_commit((9,) * 4)
    assert first == {0: (0, Note((1, 2, 3, 4), launched=0, ahead=1 + AHEAD))}
    ledger.committed(first)
    assert not ledger.must_commit()
    assert ledger.to_commit((9,) * 4) == {}
    ledger.done(0, 0)
    assert ledger.to_commit((9,) * 4) == {0: (1, Note((9,) * 4, launched=0, ahead=1 + AHEAD))}


def test_nothing_beyond_ahead_may_begin_before_a_commit() -> None:
    ledger = TaskLedger()
    ledger.assigned(0, 0, Note(ahead=2), end=5)
    for offset in (0, 1):
        ledger.take(0, offset, training=True, events_from=START, begun=False)
    assert not ledger.must_commit()
    ledger.take(0, 2, training=True, events_from=START, begun=False)
    assert ledger.must_commit()


def test_notes_survive_the_log_and_nonsense_does_not() -> None:
    note = Note((1, 2, 3, 4), launched=5, ahead=6)
    assert read_note(write_note(note)) == note
    assert [read_note(text) for text in ("", "x", "[]", '{"rollouts": [1]}')] == [None] * 4


def test_a_partition_that_went_away_is_ignored() -> None:
    ledger = TaskLedger()
    ledger.assigned(1, 0, Note(), end=1)
    ledger.take(1, 0, training=True, events_from=START, begun=False)
    ledger.revoked(1)
    ledger.done(1, 0)
    assert (ledger.owns(1), ledger.to_commit(START)) == (False, {})


@dataclass
class World:
    """A log with one partition of tasks, and launchers that die."""

    tasks: int
    events: list[tuple[int, str]] = field(default_factory=list)
    """(task offset, what) in the order of rollouts.v1, as if it had one partition."""
    committed: tuple[int, Note] | None = None

    @property
    def until(self) -> tuple[int, ...]:
        return (len(self.events),) * 4


class Mortal:
    """A launcher as far as the ledger is concerned: reads, begins, ends and commits tasks in any order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = TaskLedger()
        offset, note = world.committed or (0, Note(ahead=world.tasks))
        seen = world.events[note.rollouts[0] :]
        if not seen:
            note = Note(world.until, note.launched, ahead=offset)
        self.known = {task for task, _ in seen}
        self.finished = {task for task, what in seen if what == "finished"}
        self.next = offset
        self.ledger.assigned(0, offset, note, world.tasks)
        self.taken: list[int] = []
        self.begun: list[int] = []

    def read(self, count: int) -> None:
        for _ in range(min(count, self.world.tasks - self.next)):
            begun = self.next in self.known
            self.ledger.take(0, self.next, training=True, events_from=self.world.until, begun=begun)
            if self.ledger.must_commit():
                self.commit()
            (self.end if self.next in self.finished else self.taken.append)(self.next)
            self.next += 1

    def begin(self, index: int) -> None:
        if self.taken:
            task = self.taken.pop(index % len(self.taken))
            self.world.events.append((task, "begun"))
            self.begun.append(task)

    def finish(self, index: int) -> None:
        if self.begun:
            task = self.begun.pop(index % len(self.begun))
            self.world.events.append((task, "finished"))
            self.end(task)

    def end(self, task: int) -> None:
        self.ledger.done(0, task)

    def commit(self) -> None:
        moved = self.ledger.to_commit(self.world.until)
        self.ledger.committed(moved)
        if moved:
            self.world.committed = moved[0]


ACTION = st.tuples(st.sampled_from(["read", "begin", "finish", "finish", "commit"]), st.integers(0, 7))
LIVES = st.lists(st.lists(ACTION, max_size=25), min_size=1, max_size=5)


@given(LIVES)
@settings(max_examples=250, deadline=None)
def test_no_task_is_finished_twice_or_forgotten_whenever_a_launcher_dies(lives: list[list[tuple[str, int]]]) -> None:
    with patch("rollouts.ledger._ROOM", 2):
        live_and_die(lives)


def live_and_die(lives: list[list[tuple[str, int]]]) -> None:
    world = World(tasks=12)
    for life in lives:
        launcher = Mortal(world)
        for action, index in life:
            match action:
                case "begin":
                    launcher.begin(index)
                case "finish":
                    launcher.finish(index)
                case "read":
                    launcher.read(index)
                case _:
                    launcher.commit()
    launcher = Mortal(world)
    launcher.read(world.tasks)
    while launcher.taken:
        launcher.begin(0)
    while launcher.begun:
        launcher.finish(0)
    launcher.commit()
    assert sorted(task for task, what in world.events if what == "finished") == list(range(world.tasks))
    assert world.committed is not None
    assert (world.committed[0], world.committed[1].launched) == (world.tasks, world.tasks)
    # and what a next launcher would have to read again is nothing
    assert Mortal(world).known == set()
