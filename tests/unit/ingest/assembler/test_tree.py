"""The tree of a rollout and its samples, against sequences put together turn by turn."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.assembler.errors import BrokenTree
from ingest.assembler.samples import samples_of
from ingest.assembler.tree import build_tree
from schemas import CallKind, Completion, CompletionStatus, Sample, VersionRun
from schemas.arrays import pack_floats, pack_ids, unpack_floats, unpack_mask
from tests.unit.ingest.assembler.worlds import Turn, ids, turn_trees

LARGE = 1 << 20


def samples(completions: list[Completion]) -> list[Sample]:
    return samples_of(build_tree(completions), LARGE)


@settings(deadline=None)
@given(turn_trees())
def test_each_sampled_token_is_trained_once_and_nothing_else_is(turns: list[Turn]) -> None:
    by_name = {turn.name: turn for turn in turns}
    sampled = {token: turn for turn in turns for token in turn.sampled}
    trained: Counter[int] = Counter()
    for sample in samples([turn.recorded() for turn in turns]):
        tokens, mask = ids(sample.token_ids), unpack_mask(sample.loss_mask)
        logprobs = unpack_floats(sample.rollout_logprobs)
        assert tokens == by_name[sample.completion_ids[-1]].whole
        assert len(tokens) == len(mask) == len(logprobs)
        for token, bit, logprob in zip(tokens, mask, logprobs, strict=True):
            assert logprob == (-token if bit else 0)
            if bit:
                assert sampled[token].trained
                trained[token] += 1
    assert trained == Counter(token for turn in turns if turn.trained for token in turn.sampled)


@settings(deadline=None)
@given(turn_trees())
def test_a_sample_begins_with_the_tokens_of_every_completion_on_its_path(turns: list[Turn]) -> None:
    by_name = {turn.name: turn for turn in turns}
    for sample in samples([turn.recorded() for turn in turns]):
        tokens = ids(sample.token_ids)
        for name in sample.completion_ids:
            assert tokens[: len(by_name[name].whole)] == by_name[name].whole


@settings(deadline=None)
@given(turn_trees())
def test_version_runs_lie_on_the_tokens_that_they_speak_of(turns: list[Turn]) -> None:
    version = {}
    for turn in turns:
        half = len(turn.sampled) // 2
        version |= dict.fromkeys(turn.sampled[:half], 3) | dict.fromkeys(turn.sampled[half:], 4)
    trains = {token for turn in turns if turn.trained for token in turn.sampled}
    for sample in samples([turn.recorded() for turn in turns]):
        tokens = ids(sample.token_ids)
        told = {tokens[i]: run.version for run in sample.policy_version_runs for i in range(run.start, run.end)}
        assert told == {token: version[token] for token in tokens if token in trains}


@settings(deadline=None)
@given(turn_trees(plain=True), st.data())
def test_a_proxy_that_restarted_changes_nothing(turns: list[Turn], data: st.DataObject) -> None:
    whole = data.draw(st.lists(st.booleans(), min_size=len(turns), max_size=len(turns)))
    restarted = [turn.recorded(whole=cut) for turn, cut in zip(turns, whole, strict=True)]
    assert samples(restarted) == samples([turn.recorded() for turn in turns])


def test_the_longest_match_becomes_the_parent() -> None:
    first = Turn("a", None, [1, 2], [3])
    second = Turn("b", first, [4], [5, 6])
    third = Turn("c", second, [7], [8])
    got = samples([first.recorded(), second.recorded(), third.recorded(whole=True)])
    assert [sample.completion_ids for sample in got] == [["a", "b", "c"]]
    assert ids(got[0].token_ids) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert unpack_mask(got[0].loss_mask) == [0, 0, 1, 0, 1, 1, 0, 1]


def test_a_prompt_that_was_rewritten_is_a_root_of_its_own() -> None:
    first = Turn("a", None, [1, 2], [3])
    compacted = Turn("b", None, [1, 9], [4])
    got = samples([first.recorded(), compacted.recorded()])
    assert [sample.completion_ids for sample in got] == [["a"], ["b"]]


def test_an_aborted_reply_is_no_parent_for_a_prompt_that_happens_to_continue_it() -> None:
    aborted = Turn("a", None, [1, 2], [3], status=CompletionStatus.ABORTED)
    root = Turn("b", None, [1, 2, 3, 4], [5])
    assert [s.completion_ids for s in samples([aborted.recorded(), root.recorded()])] == [["b"]]


def test_two_branches_train_what_they_share_once() -> None:
    shared = Turn("a", None, [1], [2])
    left, right = Turn("b", shared, [3], [4]), Turn("c", shared, [5], [6])
    first, second = samples([shared.recorded(), left.recorded(), right.recorded()])
    assert (unpack_mask(first.loss_mask), unpack_mask(second.loss_mask)) == ([0, 1, 0, 1], [0, 0, 0, 1])
    assert unpack_floats(second.rollout_logprobs) == [0, 0, 0, -6]
    assert (first.branch, second.branch) == (0, 1)


@pytest.mark.parametrize("kind", [CallKind.AUXILIARY, CallKind.COUNT])
def test_side_calls_are_not_trained(kind: CallKind) -> None:
    assert samples([Turn("a", None, [1], [2], kind=kind).recorded()]) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rollout_logprobs": pack_floats([-1.0])}, "logprobs_misaligned"),
        ({"rollout_logprobs": b""}, "logprobs_misaligned"),
        ({"completion_token_ids": b""}, "logprobs_misaligned"),
        ({"rollout_logprobs": pack_floats([-1.0, float("nan")])}, "logprobs_not_finite"),
        ({"rollout_logprobs": pack_floats([float("-inf"), float("inf")])}, "logprobs_not_finite"),
        ({"policy_version_runs": []}, "versions_misaligned"),
        ({"policy_version_runs": [VersionRun(version=1, start=0, end=1)]}, "versions_misaligned"),
        ({"policy_version_runs": [VersionRun(version=1, start=1, end=2)]}, "versions_misaligned"),
        (
            {"policy_version_runs": [VersionRun(version=1, start=0, end=2), VersionRun(version=2, start=1, end=2)]},
            "versions_misaligned",
        ),
        ({"prompt_token_count": 4}, "broken_chain"),
        ({"prompt_token_ids": pack_ids([4, 5])}, "broken_chain"),
        ({"prompt_token_ids": b"\1\2\3"}, "broken_chain"),
        ({"parent_id": "never-recorded"}, "broken_chain"),
        ({"parent_id": "b"}, "broken_chain"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, reason: str) -> None:
    first = Turn("a", None, [1], [2])
    second = msgspec.structs.replace(Turn("b", first, [4], [5, 6]).recorded(), **change)
    with pytest.raises(BrokenTree, match="completion b") as caught:
        build_tree([first.recorded(), second])
    assert caught.value.reason == reason


def test_completion_ids_without_a_prompt_are_refused() -> None:
    with pytest.raises(BrokenTree, match="broken_chain"):
        build_tree([Turn("a", None, [], [2]).recorded()])


def test_a_failed_call_without_tokens_breaks_nothing() -> None:
    first = Turn("a", None, [1], [2])
    failed = Completion(completion_id="b", rollout_id="r", parent_id="a", status=CompletionStatus.FAILED)
    unknown = Completion(completion_id="c", rollout_id="r", parent_id="?", status=CompletionStatus.FAILED)
    assert [s.completion_ids for s in samples([first.recorded(), failed, unknown])] == [["a"]]


def test_a_fork_storm_is_refused_before_it_is_built() -> None:
    root = Turn("root", None, list(range(1000)), [1])
    forks = [Turn(f"f{i}", root, [2], [3]) for i in range(100)]
    tree = build_tree([root.recorded(), *(fork.recorded() for fork in forks)])
    with pytest.raises(BrokenTree, match="too_large: 100 branches"):
        samples_of(tree, 100 * 9 * 1003)
