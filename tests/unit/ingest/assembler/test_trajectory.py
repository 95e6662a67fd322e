"""Which finished rollouts may be trained, and the sums of a trajectory."""

import pytest

from ingest.assembler.attempt import Attempt
from ingest.assembler.trajectory import assemble
from schemas import CallKind, Completion, CompletionTimings, EndReason, RolloutTimings, Trajectory
from tests.unit.ingest.assembler.worlds import Turn, finished

LARGE = 1 << 20


def attempt_of(*completions: Completion, max_bytes: int = LARGE) -> Attempt:
    attempt = Attempt()
    for offset, completion in enumerate(completions):
        attempt.add(offset, completion, max_bytes)
    return attempt


def conversation() -> list[Completion]:
    first = Turn("a", None, [1, 2, 3], [4, 5])
    return [first.recorded(), Turn("b", first, [6], [7, 8, 9]).recorded()]


def assembled(attempt: Attempt, **event: object) -> Trajectory:
    return assemble(finished("r", **event), attempt, max_bytes=LARGE, at_us=5)[0]


def test_a_rollout_that_went_well_is_trainable() -> None:
    t = assembled(attempt_of(*conversation()), group_size=8, group_index=3, reward=0.5, labels={"k": "v"})
    assert (t.trainable, t.reason) == (True, "")
    assert (t.trajectory_id, t.group_size, t.group_index, t.reward, t.labels) == ("r-t", 8, 3, 0.5, {"k": "v"})
    assert (t.completion_count, t.prompt_tokens, t.completion_tokens, t.trained_tokens) == (2, 3 + 6, 5, 5)
    assert (t.policy_version_min, t.policy_version_max, t.assembled_at_us) == (3, 4, 5)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"evaluation": True, "end_reason": EndReason.WALL_LIMIT}, "evaluation"),
        ({"end_reason": EndReason.WALL_LIMIT, "reward": None}, "wall_limit"),
        ({"end_reason": EndReason.INFRASTRUCTURE}, "infrastructure"),
        ({"end_reason": None}, "UNKNOWN"),
        ({"reward": None}, "no_reward"),
        ({"reward": float("nan")}, "no_reward"),
        ({"completion_count": 3}, "incomplete"),
        ({"completion_count": 2}, ""),
    ],
)
def test_the_reason_names_the_first_thing_that_forbids_training(event: dict, reason: str) -> None:
    t = assembled(attempt_of(*conversation()), **event)
    assert (t.trainable, t.reason) == (not reason, reason)
    assert len(t.samples) == 1  # kept for the reader, trained or not


def test_nothing_sampled_is_nothing_to_train() -> None:
    side = Turn("a", None, [1], [2], kind=CallKind.AUXILIARY).recorded()
    assert assembled(attempt_of(side)).reason == "no_tokens"
    assert assembled(Attempt(), end_reason=EndReason.NO_CALLS).reason == "no_calls"


def test_a_broken_tree_becomes_the_reason() -> None:
    _, orphan = conversation()
    t, broken = assemble(finished("r"), attempt_of(orphan), max_bytes=LARGE, at_us=0)
    assert (t.trainable, t.reason, t.samples, t.completion_count) == (False, "broken_chain", [], 1)
    assert broken is not None
    assert "its parent a is not recorded" in str(broken)


def test_a_completion_counts_once_however_often_it_was_recorded() -> None:
    assert assembled(attempt_of(*conversation(), *conversation()), completion_count=2).trainable


def test_a_rollout_with_too_many_tokens_keeps_its_sums_and_is_not_trained() -> None:
    attempt = attempt_of(*conversation(), max_bytes=1_030)
    t = assembled(attempt)
    assert (t.reason, t.samples) == ("too_large", [])
    assert (t.completion_count, t.completion_tokens) == (2, 5)
    assert (attempt.size_bytes, [r.completion for r in attempt.recorded.values()]) == (0, [None, None])


def test_seconds_come_from_the_recorded_times() -> None:
    timings = CompletionTimings(received_at_us=1, dispatched_at_us=2_000_000, last_token_at_us=3_500_000)
    first = Turn("a", None, [1], [2]).recorded()
    timed = Completion(**{**{f: getattr(first, f) for f in first.__struct_fields__}, "timings": timings})
    t = assembled(attempt_of(timed), timings=RolloutTimings(started_at_us=1_000_000, exited_at_us=5_250_000), cpu_s=2.5)
    assert (t.engine_s, t.wall_s, t.cpu_s) == (1.5, 4.25, 2.5)
    assert assembled(attempt_of(first)).wall_s is None
