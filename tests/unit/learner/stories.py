"""Small made-up trajectories, and a collector fed with them."""

from collections.abc import Sequence

import numpy as np

from learner.groups import CollectorState, GroupCollector, GroupRules
from learner.rows import Row, RowRules
from schemas import Sample, Trajectory, VersionRun
from schemas.arrays import pack_floats, pack_ids, pack_mask

ROWS = RowRules(vocabulary=100, max_tokens=50)
RULES = GroupRules(
    policy_id="policy", rows=ROWS, deadline_us=1_000_000, keep_partial=False, max_staleness=2, first_version=0
)


def row(ids: Sequence[int], mask: Sequence[int], logprobs: Sequence[float], prompt_length: int) -> Row:
    """A row from plain numbers."""
    return Row(np.array(ids, "<i4"), np.array(mask, np.uint8), np.array(logprobs, "<f4"), prompt_length)


def sample(
    prompt: Sequence[int] = (1, 2, 3),
    completion: Sequence[int] = (4, 5),
    logprobs: Sequence[float] | None = None,
    branch: int = 0,
    version: int = 0,
) -> Sample:
    """One prompt and one completion."""
    length = len(prompt) + len(completion)
    return Sample(
        branch=branch,
        token_ids=pack_ids([*prompt, *completion]),
        loss_mask=pack_mask([0] * len(prompt) + [1] * len(completion)),
        rollout_logprobs=pack_floats([0.0] * len(prompt) + list(logprobs or [-1.0] * len(completion))),
        policy_version_runs=[VersionRun(version=version, start=len(prompt), end=length)],
    )


def trajectory(
    group: str = "g",
    index: int = 0,
    reward: float | None = 0.0,
    *,
    size: int = 2,
    version: int = 0,
    samples: list[Sample] | None = None,
    trainable: bool = True,
    reason: str = "",
    evaluation: bool = False,
    policy_id: str = "policy",
) -> Trajectory:
    """Member `index` of a group."""
    samples = [sample(version=version)] if samples is None else samples
    return Trajectory(
        trajectory_id=f"{group}-r{index}-t",
        rollout_id=f"{group}-r{index}",
        task_id=group,
        group_id=group,
        group_size=size,
        group_index=index,
        policy_id=policy_id,
        evaluation=evaluation,
        reward=reward,
        trainable=trainable,
        reason=reason,
        samples=samples,
        policy_version_min=version if samples else None,
        policy_version_max=version if samples else None,
        trained_tokens=sum(sum(one.loss_mask) for one in samples),
    )


Log = Sequence[tuple[int, int, Trajectory]]
"""Partition, offset and record, in the order of reading; the log's time is the place in it, in seconds."""


def collect(log: Log, rules: GroupRules = RULES, state: CollectorState | None = None) -> GroupCollector:
    """A collector that has read the log, beginning at its state's offsets."""
    collector = GroupCollector(rules, state)
    starts = state.offsets if state else {}
    for second, (partition, offset, record) in enumerate(log):
        if offset >= starts.get(partition, 0):
            collector.add(partition, offset, second * 1_000_000, record)
    return collector
