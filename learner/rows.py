"""Trajectories → training rows: one row a sample that has something to train. Fails closed, never pads.

No torch: tensors begin in `batches.py`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from learner.errors import MisalignedSample
from schemas import Sample, Trajectory

# A log-probability is at most 0; engines that compute it in low precision overshoot by rounding.
_ROUNDING = 1e-3


@dataclass(frozen=True, eq=False)
class Row:
    """One training sequence. The three arrays have one entry a token."""

    token_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    """1 where the policy sampled the token and this row trains it."""
    logprobs: npt.NDArray[np.float32]
    """Log-probability as sampled; read only where the mask is 1."""
    prompt_length: int
    """Tokens before the first trained one; at least 1."""

    @property
    def trained_tokens(self) -> int:
        """Tokens that this row trains."""
        return int(self.loss_mask.sum())


@dataclass(frozen=True)
class Batch:
    """What one optimizer step trains."""

    rows: list[Row]
    advantages: list[float]
    """One a row: the same for all its trained tokens, times the row's weight in the loss."""

    @property
    def trained_tokens(self) -> int:
        """Tokens with a loss mask of 1."""
        return sum(row.trained_tokens for row in self.rows)

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True)
class RowRules:
    """What a model can take in."""

    vocabulary: int
    """Token ids are below it."""
    max_tokens: int
    """Longest sequence."""


def rows_of(trajectory: Trajectory, rules: RowRules) -> list[Row]:
    """The rows of a trajectory, in the order of its branches; samples without a trained token give none.

    Raises:
        MisalignedSample: any sample is not what the contract promises. Then nothing of the trajectory is trained: a
            trajectory that is wrong in one place is not trusted in another.
    """
    rows = []
    for sample in trajectory.samples:
        try:
            row = _row(sample, rules)
        except (ValueError, MisalignedSample) as error:
            raise MisalignedSample(f"{trajectory.trajectory_id}, branch {sample.branch}: {error}") from error
        if row:
            rows.append(row)
    return rows


def _row(sample: Sample, rules: RowRules) -> Row | None:
    ids = np.frombuffer(sample.token_ids, "<i4")  # ValueError when that is no whole number of values
    mask = np.frombuffer(sample.loss_mask, np.uint8)
    logprobs = np.frombuffer(sample.rollout_logprobs, "<f4")
    if not len(ids) == len(mask) == len(logprobs):
        raise MisalignedSample(f"{len(ids)} ids, {len(mask)} mask values and {len(logprobs)} log-probabilities")
    if (mask > 1).any():
        raise MisalignedSample("the loss mask holds other values than 0 and 1")
    if not mask.any():
        return None
    if mask[0]:
        raise MisalignedSample("the first token is trained, but nothing stands before it")
    if len(ids) > rules.max_tokens:
        raise MisalignedSample(f"{len(ids)} tokens are more than max_sequence_tokens ({rules.max_tokens})")
    if ids.min() < 0 or ids.max() >= rules.vocabulary:
        raise MisalignedSample(f"token ids outside of the model's vocabulary of {rules.vocabulary}")
    trained = mask.astype(bool)
    wrong = trained & ~(np.isfinite(logprobs) & (logprobs <= _ROUNDING))
    if wrong.any():
        index = int(wrong.argmax())
        raise MisalignedSample(f"token {index} is trained, but its log-probability is {logprobs[index]}")
    return Row(ids, mask, logprobs, prompt_length=int(trained.argmax()))
