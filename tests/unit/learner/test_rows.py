"""Rows from trajectories: what is trained, and what is refused."""

import math

import msgspec
import pytest

from learner.errors import MisalignedSample
from learner.rows import rows_of
from schemas import Sample
from schemas.arrays import pack_floats, pack_ids, pack_mask
from tests.unit.learner.stories import ROWS, sample, trajectory


def test_row_keeps_recorded_mask_and_logprobs() -> None:
    two_turns = Sample(
        token_ids=pack_ids([1, 2, 10, 11, 3, 12, 4]),
        loss_mask=pack_mask([0, 0, 1, 1, 0, 1, 0]),
        rollout_logprobs=pack_floats([0, 0, -0.5, -0.25, 0, -2.0, 0]),
    )
    (row,) = rows_of(trajectory(samples=[two_turns]), ROWS)
    assert row.token_ids.tolist() == [1, 2, 10, 11, 3, 12, 4]
    assert row.loss_mask.tolist() == [0, 0, 1, 1, 0, 1, 0]
    assert row.logprobs.tolist() == [0, 0, -0.5, -0.25, 0, -2.0, 0]
    assert (row.prompt_length, row.trained_tokens) == (2, 3)


def test_each_branch_is_a_row_and_branches_without_trained_tokens_are_none() -> None:
    nothing = Sample(branch=1, token_ids=pack_ids([1, 2]), loss_mask=b"\0\0", rollout_logprobs=pack_floats([0, 0]))
    rows = rows_of(trajectory(samples=[sample((1,), (2,)), nothing, sample((1,), (3, 4), branch=2)]), ROWS)
    assert [row.token_ids.tolist() for row in rows] == [[1, 2], [1, 3, 4]]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rollout_logprobs": pack_floats([0, 0, 0, -1.0])}, "5 ids, 5 mask values and 4 log-probabilities"),
        ({"loss_mask": pack_mask([0, 0, 0, 1])}, "5 ids, 4 mask values"),
        ({"loss_mask": pack_mask([0, 0, 0, 1, 2])}, "other values than 0 and 1"),
        ({"loss_mask": pack_mask([1, 0, 0, 1, 1])}, "the first token is trained"),
        ({"rollout_logprobs": pack_floats([0, 0, 0, -1.0, math.nan])}, "token 4 is trained"),
        ({"rollout_logprobs": pack_floats([0, 0, 0, -math.inf, -1.0])}, "token 3 is trained"),
        ({"rollout_logprobs": pack_floats([0, 0, 0, 0.5, -1.0])}, "token 3 is trained"),
        ({"token_ids": pack_ids([1, 2, 3, 4, 100])}, "outside of the model's vocabulary of 100"),
        ({"token_ids": pack_ids([1, 2, 3, 4, -1])}, "outside of the model's vocabulary"),
        ({"token_ids": b"\1\2\3"}, "multiple of element size"),
    ],
)
def test_misaligned_sample_is_refused_and_named(change: dict, says: str) -> None:
    broken = msgspec.structs.replace(sample(branch=7), **change)
    with pytest.raises(MisalignedSample, match=says) as error:
        rows_of(trajectory("task", 3, samples=[broken]), ROWS)
    assert "task-r3-t, branch 7" in str(error.value)


def test_one_bad_branch_refuses_the_whole_trajectory() -> None:
    bad = msgspec.structs.replace(sample(branch=1), rollout_logprobs=b"")
    with pytest.raises(MisalignedSample):
        rows_of(trajectory(samples=[sample(), bad]), ROWS)


def test_sequence_beyond_the_limit_is_refused() -> None:
    assert rows_of(trajectory(samples=[sample([1] * 48, [2, 3])]), ROWS)
    with pytest.raises(MisalignedSample, match="51 tokens are more than max_sequence_tokens"):
        rows_of(trajectory(samples=[sample([1] * 49, [2, 3])]), ROWS)


def test_logprob_garbage_outside_of_the_mask_is_ignored() -> None:
    odd = msgspec.structs.replace(sample(), rollout_logprobs=pack_floats([math.nan, 9.0, 0, -1.0, -1.0]))
    assert len(rows_of(trajectory(samples=[odd]), ROWS)) == 1
