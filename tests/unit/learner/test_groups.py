"""Groups: completeness, order, reasons, deadlines, and a restart at every point of the log."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.groups import CollectorState, GroupCollector, GroupRules, Settled
from schemas import Trajectory
from tests.unit.learner.stories import RULES, Log, collect, sample, trajectory

KEEP = replace(RULES, keep_partial=True)


def pair(group: str, *, first: int = 0, partition: int = 0, rewards: tuple[float, float] = (0.0, 1.0)) -> Log:
    return [(partition, first + index, trajectory(group, index, rewards[index])) for index in range(2)]


def names(collector: GroupCollector, count: int, version: int = 0) -> list[str] | None:
    groups = collector.take(count, version)
    return None if groups is None else [group.group_id for group in groups]


def test_group_is_ready_with_its_last_member_and_not_before() -> None:
    collector = collect(pair("a")[:1])
    assert names(collector, 1) is None
    assert (collector.open_count, collector.ready_count) == (1, 0)
    collector = collect(pair("a"))
    assert names(collector, 1) == ["a"]
    assert names(collector, 1) is None
    assert (collector.groups_trained, collector.groups_dropped) == (1, 0)


def test_take_gives_all_or_nothing() -> None:
    collector = collect([*pair("a"), *pair("b", first=2)])
    assert names(collector, 3) is None
    assert names(collector, 2) == ["a", "b"]


def test_log_order_is_the_order_of_the_last_members() -> None:
    a, b = pair("a"), pair("b", partition=1)
    collector = collect([a[0], b[0], b[1], a[1]])
    assert names(collector, 2) == ["b", "a"]


def test_members_stand_in_the_order_of_their_index() -> None:
    collector = collect([(0, 0, trajectory("a", 1, 1.0)), (0, 1, trajectory("a", 0, 0.0))])
    groups = collector.take(1, 0)
    assert groups is not None
    assert [member.reward for member in groups[0].members] == [0.0, 1.0]


def test_equal_rewards_are_dropped_and_the_next_group_takes_their_place() -> None:
    collector = collect([*pair("flat", rewards=(1.0, 1.0)), *pair("a", first=2)])
    assert names(collector, 1) == ["a"]
    assert collector.drain_drops() == {"flat": "zero_variance"}
    assert collector.drain_drops() == {}
    assert (collector.groups_trained, collector.groups_dropped) == (1, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"trainable": False, "reason": "incomplete"},
        {"reward": None},
        {"reward": float("nan")},
        {"samples": []},
        {"samples": [sample(completion=())]},
        {"samples": [sample(completion=(4, 5), logprobs=(-1.0, 1.0))]},
    ],
)
def test_untrainable_member_is_left_out_and_the_others_are_trained(bad: dict) -> None:
    members = [trajectory("a", 0, 0.0, size=3), trajectory("a", 1, 1.0, size=3)]
    broken = trajectory(**({"group": "a", "index": 2, "reward": 0.5, "size": 3} | bad))
    collector = collect([(0, offset, one) for offset, one in enumerate([*members, broken])])
    groups = collector.take(1, 0)
    assert groups is not None
    assert [member.trajectory.group_index for member in groups[0].members] == [0, 1]
    assert list(groups[0].excluded) == ["a-r2-t"]
    assert groups[0].excluded["a-r2-t"]
    assert not groups[0].partial


def test_fewer_than_two_trainable_members_are_no_group() -> None:
    collector = collect([(0, 0, trajectory("a", 0, 1.0)), (0, 1, trajectory("a", 1, 0.0, trainable=False))])
    assert names(collector, 1) is None
    assert collector.drain_drops() == {"a": "untrainable"}


def test_two_left_over_members_with_equal_rewards_are_no_group() -> None:
    log = [(0, i, trajectory("a", i, float(i == 2), size=3, trainable=i != 2)) for i in range(3)]
    collector = collect(log)
    assert collector.drain_drops() == {"a": "zero_variance"}


def test_evaluation_and_other_policies_are_passed_over() -> None:
    collector = collect(
        [
            (0, 0, trajectory("e", 0, evaluation=True)),
            (0, 1, trajectory("o", 0, policy_id="other")),
            *pair("a", first=2),
        ]
    )
    assert collector.open_count == 0
    assert names(collector, 1) == ["a"]
    assert collector.snapshot().offsets == {0: 4}
    assert collector.groups_dropped == 0


@pytest.mark.parametrize(("version", "taken"), [(5, True), (7, True), (8, False), (4, False)])
def test_staleness_bound(version: int, taken: bool) -> None:
    """The oldest member is of version 5; at most two versions may lie between."""
    log = [(0, 0, trajectory("a", 0, 0.0, version=6)), (0, 1, trajectory("a", 1, 1.0, version=5))]
    collector = collect(log)
    assert names(collector, 1, version) == (["a"] if taken else None)
    assert collector.drain_drops() == ({} if taken else {"a": "stale"})


def test_tokens_of_an_earlier_run_are_stale() -> None:
    collector = collect(
        [(0, i, trajectory("a", i, float(i), version=9)) for i in range(2)], replace(RULES, first_version=10)
    )
    assert names(collector, 1, 10) is None
    assert collector.drain_drops() == {"a": "stale"}


def test_deadline_drops_or_keeps() -> None:
    log = [(0, i, trajectory("a", i, float(i), size=4)) for i in range(3)]  # at 0, 1 and 2 s; deadline 1 s
    for rules, drops, ready in ((RULES, {"a": "deadline"}, None), (KEEP, {}, ["a"])):
        collector = collect(log, rules)
        assert collector.overdue(1_000_000) == set()
        assert collector.overdue(1_000_001) == {0}
        collector.expire({1}, 1_000_001)
        assert collector.open_count == 1, "only partitions that were read to their end"
        collector.expire({0}, 1_000_001)
        assert names(collector, 1) == ready
        assert collector.drain_drops() == drops


def test_partial_group_is_flagged() -> None:
    collector = collect([(0, i, trajectory("a", i, float(i), size=4)) for i in range(2)], KEEP)
    collector.expire({0}, 5_000_000)
    groups = collector.take(1, 0)
    assert groups is not None
    assert groups[0].partial
    assert len(groups[0].members) == 2


def test_partial_group_of_one_is_dropped_even_if_kept() -> None:
    collector = collect([(0, 0, trajectory("a", 0, 1.0, size=4))], KEEP)
    collector.expire({0}, 5_000_000)
    assert collector.drain_drops() == {"a": "deadline"}


def test_late_members_never_make_a_second_group() -> None:
    first = [(0, i, trajectory("a", i, float(i), size=4)) for i in range(2)]
    late = [(0, i, trajectory("a", i, float(i), size=4)) for i in range(2, 4)]
    collector = collect(first, KEEP)
    collector.expire({0}, 5_000_000)
    assert names(collector, 1) == ["a"]
    state = collector.snapshot()
    assert state.settled == {"a": Settled(0, 1, 2)}, "remembered although all of its records lie behind"
    again = collect(late, KEEP, state)
    again.expire({0}, 50_000_000)
    assert names(again, 1) is None
    assert again.late_trajectories == 2
    assert (again.open_count, again.drain_drops()) == (0, {})
    assert again.snapshot().settled == {}, "complete at last: no record of it can come any more"


def test_reading_a_partial_group_again_does_not_make_it_complete() -> None:
    """An older open group makes a restart read the partial group's records a second time."""
    log = [(0, 0, trajectory("open", 0)), *((0, 1 + i, trajectory("a", i, float(i), size=4)) for i in range(2))]
    collector = collect(log, replace(KEEP, deadline_us=1))
    collector.expire({0}, 1_500_000)  # "open" and "a" began at 0 and 1 s
    assert names(collector, 1) == ["a"]
    state = CollectorState({0: 0}, collector.snapshot().settled)
    again = collect(log, KEEP, state)
    assert again.snapshot().settled["a"] == Settled(0, 2, 2)
    assert again.late_trajectories == 0


def test_run_complete_drops_what_is_ready() -> None:
    collector = collect([*pair("a"), *pair("b", first=2)])
    collector.drop_ready("run_complete")
    assert collector.drain_drops() == {"a": "run_complete", "b": "run_complete"}
    assert collector.groups_dropped == 2


def test_snapshot_keeps_the_oldest_needed_offset_and_names_what_lies_beyond() -> None:
    log = [(0, 0, trajectory("open", 0)), *pair("done", first=1), *pair("other", first=0, partition=1)]
    collector = collect(log)
    assert names(collector, 2) == ["done", "other"]
    state = collector.snapshot()
    assert state.offsets == {0: 0, 1: 2}
    assert state.settled == {"done": Settled(0, 2, 0)}
    assert state.groups_trained == 2


def test_ready_groups_are_read_again_after_a_restart() -> None:
    log = [*pair("a"), *pair("b", first=2), *pair("c", first=4)]
    collector = collect(log)
    assert names(collector, 1) == ["a"]
    again = collect(log, state=collector.snapshot())
    assert names(again, 2) == ["b", "c"]


def test_record_read_twice_counts_once() -> None:
    one = trajectory("a", 0, 0.0)
    collector = collect([(0, 0, one), (0, 1, one), (0, 2, trajectory("a", 1, 1.0))])
    groups = collector.take(1, 0)
    assert groups is not None
    assert len(groups[0].members) == 2


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int, Trajectory]]:
    """Interleaved groups of 1 to 3 members on 2 partitions; some flat, some untrainable, some incomplete."""
    waiting: list[list[tuple[int, Trajectory]]] = []
    for number in range(draw(st.integers(1, 8))):
        size, seen = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        partition = draw(st.integers(0, 1))
        members = [
            (partition, trajectory(f"g{number}", i, draw(st.sampled_from([0.0, 1.0])), size=size,
                                   trainable=draw(st.booleans()) or draw(st.booleans())))
            for i in range(min(seen, size))
        ]  # fmt: skip
        waiting.append(members)
    offsets = {0: 0, 1: 0}
    log = []
    while waiting:
        group = draw(st.sampled_from(waiting))
        partition, record = group.pop(0)
        log.append((partition, offsets[partition], record))
        offsets[partition] += 1
        waiting = [one for one in waiting if one]
    return log


def consume(log: Log, crashes: set[int], rules: GroupRules = RULES) -> tuple[list[str], dict[str, str], int, int]:
    """Trains two groups whenever there are two. A crash forgets everything since the last checkpoint, which is made
    after each step; what a lost life did is undone. Returns trained, dropped, and the counters."""
    collector, state = GroupCollector(rules), CollectorState()
    trained: list[str] = []
    dropped: dict[str, str] = {}
    since: dict[str, str] = {}
    for count, (partition, offset, record) in enumerate(log):
        collector.add(partition, offset, count * 1_000_000, record)
        if count in crashes:
            collector = collect(log[: count + 1], rules, state)
            since = {}
        while groups := collector.take(2, 0):
            trained += [group.group_id for group in groups]
            dropped |= since | collector.drain_drops()
            since, state = {}, collector.snapshot()
        since |= collector.drain_drops()
    return trained, dropped | since, collector.groups_trained, collector.groups_dropped


@given(log=logs(), crashes=st.sets(st.integers(0, 30)))
def test_crashes_change_nothing(log: list[tuple[int, int, Trajectory]], crashes: set[int]) -> None:
    """Whatever moment the learner dies at, the same groups are trained and dropped, each once."""
    trained, dropped, trained_count, dropped_count = consume(log, crashes)
    assert (trained, dropped, trained_count, dropped_count) == consume(log, set())
    assert len(trained) == len(set(trained)) == trained_count
    assert not set(trained) & set(dropped)
    assert len(dropped) == dropped_count
