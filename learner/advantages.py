"""Groups → the batch of a step: advantages, and how much each row counts in the loss."""

import random
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch

from learner.groups import Group
from learner.rows import Batch
from learner.settings import LearnerSettings
from learner.verl_api import compute_grpo_outcome_advantage


def batch_of(groups: Sequence[Group], step: int, settings: LearnerSettings) -> Batch:
    """The batch of a step. A row's advantage is its rollout's, times the row's weight.

    Weights can ride on the advantage because PPO's clipped loss, dual clip included, is linear in it for one sign.
    """
    members = [member for group in groups for member in group.members]
    rewards = [member.reward for member in members]
    if settings.shuffle_rewards:
        rewards = shuffled(rewards, settings.seed, step)
    group_ids = [group.group_id for group in groups for _ in group.members]
    advantages = group_advantages(rewards, group_ids, norm_by_std=settings.norm_adv_by_std)
    weights = row_weights([[row.trained_tokens for row in m.rows] for m in members], settings.loss_weighting)
    return Batch(
        rows=[row for member in members for row in member.rows],
        advantages=[a * weight for a, rows in zip(advantages, weights, strict=True) for weight in rows],
    )


def group_advantages(rewards: Sequence[float], group_ids: Sequence[str], *, norm_by_std: bool) -> list[float]:
    """GRPO's advantage of each rollout: its reward less the mean of its group, by veRL's own function.

    Rollouts are compared, not rows: one with many samples counts once in the mean.

    Args:
        rewards: One a rollout.
        group_ids: The group of each rollout.
        norm_by_std: Divide by the group's sample standard deviation, as in GRPO (https://arxiv.org/abs/2402.03300);
            without it this is Dr. GRPO's (https://arxiv.org/abs/2503.20783).
    """
    scores = torch.tensor(list(rewards), dtype=torch.float32).unsqueeze(-1)
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=scores,
        response_mask=torch.ones_like(scores),
        index=np.array(group_ids, dtype=object),
        norm_adv_by_std_in_grpo=norm_by_std,
    )
    return advantages.squeeze(-1).tolist()


def row_weights(trained_tokens: Sequence[Sequence[int]], weighting: Literal["token", "rollout"]) -> list[list[float]]:
    """What each row's loss is multiplied with before the mean over all trained tokens is taken.

    The weights average to 1 over the tokens. A rollout that was split into many samples (sub-agents, context
    compaction) must not outweigh one that was not:

    * `token`: with s samples it counts as one sample of their mean length; one sample, one weight: plain token mean.
    * `rollout`: all rollouts count the same.

    Args:
        trained_tokens: For each rollout, the trained tokens of each of its rows.
        weighting: Which of the two.
    """
    raw = [1.0 / (len(rows) if weighting == "token" else sum(rows)) for rows in trained_tokens]
    tokens = sum(sum(rows) for rows in trained_tokens)
    scale = tokens / sum(weight * sum(rows) for weight, rows in zip(raw, trained_tokens, strict=True))
    return [[weight * scale] * len(rows) for weight, rows in zip(raw, trained_tokens, strict=True)]


def shuffled(rewards: Sequence[float], seed: int, step: int) -> list[float]:
    """The same rewards with other owners: a control experiment in which nothing can be learned.

    A function of seed and step, so that a repeated step is the same step.
    """
    mixed = list(rewards)
    random.Random(f"{seed}/{step}").shuffle(mixed)
    return mixed
