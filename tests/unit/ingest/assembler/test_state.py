"""The state of a partition is a function of the log: every rollout once, wherever it is cut off and begun again."""

from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.assembler.state import NOWHERE, RECENT, Bounds, Offsets, PartitionState
from schemas import AssemblerProgress, Completion, RolloutEvent, RolloutEventKind
from tests.unit.ingest.assembler.worlds import Logs, Turn, finished, logs

BOUNDS = Bounds(
    rollout_max_bytes=1 << 20,
    abandon_after_us=1_000_000,
    orphan_after_us=1_000,
    orphan_max_bytes=1 << 20,
    waiting_max_count=100,
)


def state(progress: AssemblerProgress | None = None, ends: Offsets = NOWHERE, **bounds: int) -> PartitionState:
    return PartitionState(progress or AssemblerProgress(partition=2), ends, replace(BOUNDS, **bounds))


def feed(into: PartitionState, log: Logs, until: Offsets, at_us: int = 0) -> dict[str, list[str]]:
    """Read both logs from the state's position to `until`; what came out."""
    for offset in range(into.position.rollouts, until.rollouts):
        into.add_event(offset, log.events[offset], at_us)
    for offset in range(into.position.completions, until.completions):
        into.add_completion(offset, log.completions[offset], at_us)
    into.advance(
        Offsets(max(until.rollouts, into.position.rollouts), max(until.completions, into.position.completions))
    )
    return {event.rollout_id: list(attempt.recorded) for event, attempt in into.complete()}


def ordered(written: dict[str, list[str]]) -> dict[str, list[str]]:
    return {rollout: sorted(ids) for rollout, ids in written.items()}


@settings(deadline=None)
@given(logs(), st.data())
def test_each_rollout_comes_out_once_however_often_the_assembler_dies(log: Logs, data: st.DataObject) -> None:
    ends = Offsets(len(log.events), len(log.completions))
    progress = AssemblerProgress(partition=2)
    written: dict[str, list[str]] = {}
    times: Counter[str] = Counter()
    current = state(progress, ends)
    for _ in range(data.draw(st.integers(0, 8), label="reads")):
        until = Offsets(
            data.draw(st.integers(current.position.rollouts, ends.rollouts)),
            data.draw(st.integers(current.position.completions, ends.completions)),
        )
        out = feed(current, log, until)
        fate = data.draw(st.sampled_from(["committed", "killed before the commit", "killed after it"]))
        if fate != "killed before the commit":
            written |= ordered(out)
            times.update(out.keys())
            progress = current.progress()
        if fate != "committed":
            current = state(progress, ends)
    out = feed(current, log, ends)
    written |= ordered(out)
    times.update(out.keys())
    assert written == ordered(log.expected)
    assert set(times.values()) <= {1}


@settings(deadline=None)
@given(logs())
def test_when_all_is_done_a_restart_reads_nothing_again(log: Logs) -> None:
    ends = Offsets(len(log.events), len(log.completions))
    current = state(ends=ends)
    feed(current, log, ends)
    unfinished = [e.rollout_id for e in log.events if e.rollout_id not in log.expected]
    start = current.progress()
    firsts = [i for i, e in enumerate(log.events) if e.rollout_id in unfinished]
    assert start.rollouts_offset == (firsts[0] if firsts else ends.rollouts)
    assert start.partition == 2


def test_a_rollout_waits_for_its_completions() -> None:
    current = state()
    current.add_event(0, finished("r", completions_end_offset=5), 0)
    current.advance(Offsets(1, 4))
    assert list(current.complete()) == []
    assert current.waiting_count == 1
    current.advance(Offsets(1, 5))
    assert [event.rollout_id for event, _ in current.complete()] == ["r"]
    assert current.waiting_count == 0


def test_a_rollout_that_names_no_offset_waits_for_the_end_as_it_is_known_next() -> None:
    current = state(ends=Offsets(1, 0))
    current.add_event(0, finished("r", completions_end_offset=None), 0)
    current.advance(Offsets(1, 7))
    assert list(current.complete()) == []
    current.ends_are(Offsets(1, 9))
    assert list(current.complete()) == []
    current.advance(Offsets(1, 9))
    assert len(list(current.complete())) == 1


def test_only_the_attempt_that_finished_counts() -> None:
    current = state()
    current.add_completion(0, Turn("old", None, [1], [2]).recorded("r", 1), 0)
    current.add_completion(1, Turn("new", None, [1], [2]).recorded("r", 2), 0)
    current.add_event(0, finished("r", attempt=2, completions_end_offset=2), 0)
    current.advance(Offsets(1, 2))
    assert [list(attempt.recorded) for _, attempt in current.complete()] == [["new"]]


def test_what_was_recorded_after_the_harness_ended_does_not_count_even_if_it_was_read() -> None:
    current = state()
    current.add_completion(0, Turn("given", None, [1], [2]).recorded("r"), 0)
    current.add_completion(1, Turn("late", None, [1], [2]).recorded("r"), 0)
    current.add_event(0, finished("r", completions_end_offset=1), 0)
    current.advance(Offsets(1, 2))
    assert [list(attempt.recorded) for _, attempt in current.complete()] == [["given"]]


def test_a_late_completion_is_counted_and_passed_over() -> None:
    current = state()
    current.add_event(0, finished("r"), 0)
    current.advance(Offsets(1, 0))
    list(current.complete())
    assert current.add_completion(0, Turn("a", None, [1], [2]).recorded("r"), 0) is False
    assert (current.counters.late, current.open) == (1, {})


def test_late_records_of_a_finished_rollout_keep_it_known_to_a_restart() -> None:
    log = Logs(
        events=[
            RolloutEvent(rollout_id="slow", kind=RolloutEventKind.STARTED),
            *(finished(f"r{i}") for i in range(RECENT + 50)),
            finished("slow"),
        ]
    )
    current = state()
    out = feed(current, log, Offsets(RECENT + 51, 0))
    progress = current.progress()
    assert progress.rollouts_offset == 0
    again = state(progress, Offsets(9_999, 0))
    assert out.keys() | feed(again, log, Offsets(len(log.events), 0)).keys() == log.expected.keys() | {
        *(f"r{i}" for i in range(RECENT + 50)),
        "slow",
    }
    assert len(again.progress().finished) == RECENT + 51  # where their records lie is not known: below the end


def test_finished_rollouts_that_no_restart_would_meet_are_forgotten() -> None:
    log = Logs(events=[finished(f"r{i}") for i in range(RECENT + 50)])
    current = state()
    feed(current, log, Offsets(len(log.events), 0))
    assert current.progress().finished == [f"r{i}" for i in range(50, RECENT + 50)]


def test_what_was_silent_for_too_long_is_given_up() -> None:
    current = state()
    current.add_event(0, RolloutEvent(rollout_id="silent", kind=RolloutEventKind.STARTED), 0)
    current.add_completion(0, Turn("a", None, [1], [2]).recorded("orphan"), 0)
    current.add_event(1, RolloutEvent(rollout_id="busy", kind=RolloutEventKind.STARTED), 5_000)
    assert current.abandon() == []  # completions.v1 was read to time 0 only
    current.add_completion(1, Turn("b", None, [1], [2]).recorded("busy"), 5_000)
    assert current.abandon() == ["orphan"]
    current.add_event(2, RolloutEvent(rollout_id="busy", kind=RolloutEventKind.STARTED), 2_000_000)
    current.add_completion(2, Turn("c", None, [1], [2]).recorded("busy"), 2_000_000)
    assert current.abandon() == ["silent"]
    assert current.counters.abandoned == 2
    current.advance(Offsets(3, 3))
    assert (current.progress().rollouts_offset, current.progress().completions_offset) == (1, 1)


def test_the_input_that_ran_ahead_waits_for_the_other() -> None:
    current = state(ends=Offsets(10, 10), orphan_max_bytes=2_000, waiting_max_count=1)
    assert current.must_wait() is None
    orphan: Completion = Turn("a", None, list(range(400)), [2]).recorded("orphan")
    current.add_completion(0, orphan, 0)
    assert current.must_wait() == "completions"
    current.add_event(0, RolloutEvent(rollout_id="orphan", kind=RolloutEventKind.STARTED), 0)
    assert current.must_wait() is None
    current.add_event(1, finished("r1", completions_end_offset=9), 0)
    current.add_event(2, finished("r2", completions_end_offset=9), 0)
    assert current.must_wait() == "rollouts"
    current.advance(Offsets(3, 9))
    list(current.complete())
    assert current.must_wait() is None


def test_completions_wait_only_while_there_are_events_to_read() -> None:
    current = state(ends=Offsets(1, 10), orphan_max_bytes=1)
    current.add_completion(0, Turn("a", None, [1], [2]).recorded("orphan"), 0)
    assert current.must_wait() == "completions"
    current.advance(Offsets(1, 1))
    assert current.must_wait() is None


def test_lag_is_what_lies_between_position_and_end() -> None:
    current = state(AssemblerProgress(partition=2, rollouts_offset=3, completions_offset=4), Offsets(10, 6))
    assert current.lag_count == 7 + 2
