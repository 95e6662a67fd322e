"""A finished rollout → its trajectory: the samples, the sums, and whether it may be trained.

Fails closed: whatever does not fit makes the trajectory untrainable, with the reason in it. Nothing is padded.
"""

import math
from collections.abc import Sequence

from ingest.assembler.attempt import Attempt
from ingest.assembler.errors import BrokenTree
from ingest.assembler.samples import samples_of
from ingest.assembler.tree import build_tree
from schemas import EndReason, RolloutEvent, Sample, Trajectory
from schemas.ids import trajectory_id


def assemble(
    finished: RolloutEvent, attempt: Attempt, *, max_bytes: int, at_us: int
) -> tuple[Trajectory, BrokenTree | None]:
    """The trajectory of a finished rollout, and what is wrong with its completions, if anything.

    Args:
        finished: the rollout's last event.
        attempt: all completions of the attempt that finished.
        max_bytes: most bytes of all samples together.
        at_us: now, epoch µs.
    """
    samples, broken = _samples(attempt, max_bytes)
    reason = _reason(finished, attempt, samples, broken)
    recorded = attempt.recorded.values()
    versions = [run.version for sample in samples for run in sample.policy_version_runs]
    return Trajectory(
        trajectory_id=trajectory_id(finished.rollout_id),
        rollout_id=finished.rollout_id,
        attempt=finished.attempt,
        task_id=finished.task_id,
        taskset=finished.taskset,
        epoch=finished.epoch,
        group_id=finished.group_id,
        group_size=finished.group_size,
        group_index=finished.group_index,
        policy_id=finished.policy_id,
        harness=finished.harness,
        harness_version=finished.harness_version,
        evaluation=finished.evaluation,
        reward=finished.reward,
        rewards=finished.rewards,
        end_reason=finished.end_reason or EndReason.UNKNOWN,
        trainable=not reason,
        reason=reason,
        samples=samples,
        completion_count=len(attempt.recorded),
        policy_version_min=min(versions, default=None),
        policy_version_max=max(versions, default=None),
        prompt_tokens=sum(r.prompt_tokens for r in recorded),
        completion_tokens=sum(r.completion_tokens for r in recorded),
        trained_tokens=sum(sample.loss_mask.count(1) for sample in samples),
        cpu_s=finished.cpu_s,
        wall_s=_wall_s(finished),
        engine_s=sum(r.engine_us for r in recorded) / 1e6,
        labels=finished.labels,
        assembled_at_us=at_us,
    ), broken


def _samples(attempt: Attempt, max_bytes: int) -> tuple[list[Sample], BrokenTree | None]:
    if attempt.too_large:
        return [], BrokenTree("too_large", f"its completions take more than the {max_bytes} bytes allowed")
    try:
        completions = [r.completion for r in attempt.recorded.values() if r.completion is not None]
        return samples_of(build_tree(completions), max_bytes), None
    except BrokenTree as broken:
        return [], broken


def _reason(finished: RolloutEvent, attempt: Attempt, samples: Sequence[Sample], broken: BrokenTree | None) -> str:
    """Why the trajectory is not trainable; empty when it is. The first that applies."""
    if finished.evaluation:
        return "evaluation"
    if finished.end_reason is not EndReason.COMPLETED:
        return (finished.end_reason or EndReason.UNKNOWN).value
    if finished.reward is None or not math.isfinite(finished.reward):
        return "no_reward"
    if finished.completion_count not in (None, len(attempt.recorded)):
        return "incomplete"
    if broken is not None:
        return broken.reason
    return "" if samples else "no_tokens"


def _wall_s(finished: RolloutEvent) -> float | None:
    started, exited = finished.timings.started_at_us, finished.timings.exited_at_us
    return None if started is None or exited is None else (exited - started) / 1e6
