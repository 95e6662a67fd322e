"""The loss of one micro-batch: veRL's PPO loss, fed with the correction for what lies between engine and trainer.

An engine samples with other kernels, another precision and often older weights than the trainer has. Two corrections:

* `token_is` (decoupled): π_old is the trainer's own policy before the update, and weights min(π_old / π_rollout, C) on
  each token's loss correct for who really sampled. https://fengyao.notion.site/off-policy-rl
* `bypass`: π_old is the recorded π_rollout; PPO's clip bounds the ratio.

With one update a batch, the policy before the update is the one that this very forward pass computes, so `token_is`
needs no second pass. With more, the log-probabilities from before the first are given as `trainer_log_probs`.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from tensordict import TensorDict

from learner.batches import padded, unpadded
from learner.verl_api import (
    AggregationType,
    FSDPActorConfig,
    Metric,
    compute_rollout_correction_and_rejection_mask,
    ppo_loss,
    response_from_nested,
)


@dataclass(frozen=True)
class Correction:
    """How the mismatch between engine and trainer is corrected."""

    kind: Literal["token_is", "bypass"]
    threshold: float
    """C: where the weights are truncated."""


def policy_loss(
    config: FSDPActorConfig,
    correction: Correction,
    model_output: dict[str, torch.Tensor],
    data: TensorDict,
    dp_group: Any = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """veRL's loss function interface: loss and metrics of a micro-batch.

    `data` holds the fields of `learner.batches`, all jagged over the responses. `delta_sum`, `delta_max` and
    `rollout_kl_sum` speak of log π_train - log π_rollout before the update, summed over trained tokens.
    """
    mask, rollout = data["response_mask"], data["rollout_log_probs"]
    if "trainer_log_probs" in data:
        trainer = data["trainer_log_probs"]
    else:
        trainer = response_from_nested(model_output["log_probs"].detach(), mask)
    gaps = (padded(trainer) - padded(rollout))[padded(mask).bool()]
    metrics = {
        "delta_sum": Metric(AggregationType.SUM, gaps.abs().sum()),
        "delta_max": Metric(AggregationType.MAX, gaps.abs().max()),
        "rollout_kl_sum": Metric(AggregationType.SUM, -gaps.sum()),
    }
    if correction.kind == "token_is":
        weights = _truncated_weights(trainer, rollout, mask, correction.threshold)
        metrics["is_weight_sum"] = Metric(AggregationType.SUM, padded(weights)[padded(mask).bool()].sum())
        data["old_log_probs"], data["rollout_is_weights"] = trainer, weights
    else:
        data["old_log_probs"] = rollout
    loss, more = ppo_loss(config, model_output, data, dp_group)
    return loss, metrics | more


def _truncated_weights(
    trainer: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor, threshold: float
) -> torch.Tensor:
    weights, _, _ = compute_rollout_correction_and_rejection_mask(
        padded(trainer),
        padded(rollout),
        padded(mask).bool(),
        rollout_is="token",
        rollout_is_threshold=threshold,
    )
    assert weights is not None
    assert weights.batch is not None
    return unpadded(weights.batch["rollout_is_weights"], mask)
