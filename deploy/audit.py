"""Counts what the log lost or doubled, from the records alone.

Shares no code with what wrote them: it reads whole topics and compares. Meant for a log at rest, when every rollout
has finished and the assembler has caught up.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ingest.kafka.consumer import read_all
from ingest.kafka.settings import KafkaSettings
from schemas import (
    CallKind,
    Completion,
    CompletionStatus,
    RolloutEvent,
    RolloutEventKind,
    Step,
    Trajectory,
)
from schemas.topics import COMPLETIONS, ROLLOUTS, STEPS, TRAJECTORIES


@dataclass(frozen=True)
class Audit:
    """One line for each thing that is lost, and for each that is there twice."""

    lost: tuple[str, ...]
    doubled: tuple[str, ...]


async def audit_log(kafka: KafkaSettings) -> Audit:
    """Audit everything that is on the broker now.

    Raises:
        BrokerUnavailable: no answer.
    """
    rollouts = [r.record for r in await read_all(kafka, ROLLOUTS)]
    completions = [r.record for r in await read_all(kafka, COMPLETIONS)]
    trajectories = [r.record for r in await read_all(kafka, TRAJECTORIES)]
    steps = [r.record for r in await read_all(kafka, STEPS)]
    return audit(rollouts, completions, trajectories, steps)


def audit(
    events: Sequence[RolloutEvent],
    completions: Sequence[Completion],
    trajectories: Sequence[Trajectory],
    steps: Sequence[Step],
) -> Audit:
    """Compare the topics with each other."""
    lost = [*_unfinished(events), *_not_assembled(events, trajectories), *_not_in_samples(completions, trajectories)]
    doubled = [
        *_repeated("rollout {} finished {} times", (e.rollout_id for e in _finished(events))),
        *_repeated("rollout {} has {} trajectories", (t.rollout_id for t in trajectories)),
        *_repeated("completion {} is on the log {} times", (c.completion_id for c in completions)),
        *_trained_more_than_sampled(completions, trajectories),
        *_repeated("group {} was trained in {} steps", (group for step in lineage(steps) for group in step.groups)),
    ]
    return Audit(tuple(lost), tuple(doubled))


def lineage(steps: Iterable[Step]) -> list[Step]:
    """The steps that made the newest policy. A step told again after a crash replaces itself and what came after."""
    line: list[Step] = []
    for step in steps:
        line = [s for s in line if s.run_id != step.run_id or s.step < step.step] + [step]
    return line


def _finished(events: Iterable[RolloutEvent]) -> list[RolloutEvent]:
    return [e for e in events if e.kind is RolloutEventKind.FINISHED]


def _unfinished(events: Sequence[RolloutEvent]) -> list[str]:
    names = dict.fromkeys(e.rollout_id for e in events)
    done = {e.rollout_id for e in _finished(events)}
    return [f"rollout {name} never finished" for name in names if name not in done]


def _not_assembled(events: Sequence[RolloutEvent], trajectories: Sequence[Trajectory]) -> list[str]:
    assembled = {t.rollout_id for t in trajectories}
    names = dict.fromkeys(e.rollout_id for e in _finished(events))
    return [f"rollout {name} has no trajectory" for name in names if name not in assembled]


def _not_in_samples(completions: Sequence[Completion], trajectories: Sequence[Trajectory]) -> list[str]:
    attempts = {t.rollout_id: t.attempt for t in trajectories}
    used = {name for t in trajectories for sample in t.samples for name in sample.completion_ids}
    return [
        f"completion {c.completion_id} of rollout {c.rollout_id} is in no sample"
        for c in completions
        if c.status is CompletionStatus.DELIVERED
        and c.call_kind is not CallKind.COUNT
        and attempts.get(c.rollout_id) == c.attempt
        and c.completion_id not in used
    ]


def _trained_more_than_sampled(completions: Sequence[Completion], trajectories: Sequence[Trajectory]) -> list[str]:
    sampled: dict[tuple[str, int], int] = defaultdict(int)
    for c in {c.completion_id: c for c in completions if c.status is CompletionStatus.DELIVERED}.values():
        sampled[c.rollout_id, c.attempt] += len(c.completion_token_ids) // 4
    found = []
    for t in trajectories:
        trained = sum(sum(sample.loss_mask) for sample in t.samples)
        if trained > (most := sampled[t.rollout_id, t.attempt]):
            found.append(f"trajectory {t.trajectory_id} trains {trained} tokens, but only {most} were sampled")
    return found


def _repeated(line: str, names: Iterable[str]) -> list[str]:
    return [line.format(name, count) for name, count in Counter(names).items() if count > 1]
