"""Advantages and row weights against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.advantages import batch_of, group_advantages, row_weights, shuffled
from learner.groups import Group
from learner.settings import LearnerSettings
from tests.unit.learner.stories import collect, sample, trajectory


def group(name: str, rewards: list[float], completions: list[list[int]] | None = None) -> Group:
    """A group whose member i has one sample for each length in `completions[i]`."""
    completions = completions or [[2]] * len(rewards)
    log = [
        (0, i, trajectory(name, i, reward, size=len(rewards), samples=[sample(completion=[4] * n) for n in lengths]))
        for i, (reward, lengths) in enumerate(zip(rewards, completions, strict=True))
    ]
    groups = collect(log).take(1, 0)
    assert groups is not None
    return groups[0]


def test_advantage_is_the_reward_less_the_mean_of_the_group() -> None:
    got = group_advantages([1.0, 0.0, 0.0, 1.0, 3.0, 5.0], ["a"] * 4 + ["b"] * 2, norm_by_std=False)
    assert got == pytest.approx([0.5, -0.5, -0.5, 0.5, -1.0, 1.0])


def test_advantage_divided_by_the_sample_deviation() -> None:
    """Rewards 1, 0, 0, 0: mean 1/4, sum of squares 3/4, deviation with n-1 = 3: 1/2."""
    got = group_advantages([1.0, 0.0, 0.0, 0.0], ["a"] * 4, norm_by_std=True)
    assert got == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_one_sample_a_rollout_is_plain_token_mean() -> None:
    assert row_weights([[3], [9], [1]], "token") == [[1.0], [1.0], [1.0]]


def test_rollout_of_many_samples_does_not_outweigh_one_of_one() -> None:
    """One row of 4 tokens against four: raw weights 1 and 1/4, 20 tokens, weighted sum 4 + 16/4 = 8, scale 2.5."""
    assert row_weights([[4], [4, 4, 4, 4]], "token") == [[2.5], [0.625] * 4]


def test_rollouts_count_the_same_whatever_their_length() -> None:
    """8 tokens, 2 rollouts: each gets 4; 2 tokens at weight 2, 6 tokens at weight 2/3."""
    weights = row_weights([[2], [1, 5]], "rollout")
    assert weights[0] == pytest.approx([2.0])
    assert weights[1] == pytest.approx([2 / 3, 2 / 3])


counts = st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=5), min_size=1, max_size=8)


@given(trained=counts, weighting=st.sampled_from(["token", "rollout"]))
def test_weights_average_to_one_over_the_tokens(trained: list[list[int]], weighting: str) -> None:
    weights = row_weights(trained, weighting)  # type: ignore[arg-type]
    total = sum(w * n for ws, ns in zip(weights, trained, strict=True) for w, n in zip(ws, ns, strict=True))
    assert math.isclose(total, sum(sum(rows) for rows in trained), rel_tol=1e-9)


def test_batch_spreads_a_rollouts_advantage_over_its_rows() -> None:
    """Rewards 1 and 0, centred: ±1/2. Tokens 2 and 1 + 1: raw weights 1 and 1/2, 4 tokens, sum 3, scale 4/3."""
    settings = LearnerSettings(norm_adv_by_std=False)
    batch = batch_of([group("a", [1.0, 0.0], [[2], [1, 1]])], 1, settings)
    assert [row.trained_tokens for row in batch.rows] == [2, 1, 1]
    assert batch.advantages == pytest.approx([0.5 * 4 / 3, -0.5 * 2 / 3, -0.5 * 2 / 3])
    assert batch.trained_tokens == 4
    assert batch.longest == 5


def test_groups_are_compared_within_themselves() -> None:
    batch = batch_of([group("a", [1.0, 0.0]), group("b", [10.0, 20.0])], 1, LearnerSettings(norm_adv_by_std=False))
    assert batch.advantages == pytest.approx([0.5, -0.5, -5.0, 5.0])


def test_shuffled_rewards_are_the_same_rewards_and_a_function_of_seed_and_step() -> None:
    rewards = [float(i) for i in range(16)]
    mixed = shuffled(rewards, 1, 7)
    assert sorted(mixed) == rewards
    assert mixed != rewards
    assert mixed == shuffled(rewards, 1, 7)
    assert mixed != shuffled(rewards, 1, 8)
    assert mixed != shuffled(rewards, 2, 7)


def test_control_experiment_changes_owners_across_the_batch() -> None:
    groups = [group("a", [1.0, 1.0, 1.0, 0.0]), group("b", [5.0, 5.0, 5.0, 4.0])]
    plain = batch_of(groups, 1, LearnerSettings(norm_adv_by_std=False))
    control = batch_of(groups, 1, LearnerSettings(norm_adv_by_std=False, shuffle_rewards=True))
    assert max(abs(a) for a in control.advantages) > max(abs(a) for a in plain.advantages)
    assert [row.token_ids.tolist() for row in control.rows] == [row.token_ids.tolist() for row in plain.rows]
