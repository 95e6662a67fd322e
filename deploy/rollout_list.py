"""Rollouts as rows: life cycle and trajectory of each, from the log. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas import Completion, RolloutEvent, RolloutTimings, Trajectory

COLUMNS = (
    "rollout_id",
    "taskset",
    "harness",
    "kind",
    "end_reason",
    "reward",
    "version",
    "attempt",
    "wall_s",
    "message",
)


def rollout_rows(events: Iterable[RolloutEvent], trajectories: Iterable[Trajectory]) -> list[dict[str, Any]]:
    """One row a rollout with the last thing that happened to it, the newest last."""
    last: dict[str, RolloutEvent] = {}
    for event in sorted(events, key=lambda event: event.at_us):
        last[event.rollout_id] = event
    assembled = {trajectory.rollout_id: trajectory for trajectory in trajectories}
    return [_row(event, assembled.get(name)) for name, event in last.items()]


def rollout_story(
    rollout_id: str,
    events: Sequence[RolloutEvent],
    completions: Sequence[Completion],
    trajectories: Sequence[Trajectory],
) -> dict[str, Any] | None:
    """Everything about one rollout in the order in which it happened; None when the log does not know it."""
    own = sorted((e for e in events if e.rollout_id == rollout_id), key=lambda event: event.at_us)
    if not own:
        return None
    trajectory = next((t for t in trajectories if t.rollout_id == rollout_id), None)
    calls = [c for c in completions if c.rollout_id == rollout_id]
    return {
        **_row(own[-1], trajectory),
        "task_id": own[-1].task_id,
        "rewards": own[-1].rewards,
        "events": [{"at_us": e.at_us, "kind": e.kind.value, "attempt": e.attempt, "message": e.message} for e in own],
        "completions": [_call(c) for c in sorted(calls, key=lambda c: (c.attempt, c.call_index))],
        "trainable": trajectory.trainable if trajectory else None,
        "why_not_trainable": trajectory.reason if trajectory else None,
        "trained_tokens": trajectory.trained_tokens if trajectory else None,
    }


def _row(event: RolloutEvent, trajectory: Trajectory | None) -> dict[str, Any]:
    return {
        "rollout_id": event.rollout_id,
        "taskset": event.taskset,
        "harness": event.harness,
        "kind": event.kind.value,
        "end_reason": event.end_reason.value if event.end_reason else None,
        "reward": event.reward,
        "version": trajectory.policy_version_max if trajectory else None,
        "attempt": event.attempt,
        "wall_s": _wall_s(event.timings),
        "message": event.message,
    }


def _call(completion: Completion) -> dict[str, Any]:
    return {
        "completion_id": completion.completion_id,
        "attempt": completion.attempt,
        "status": completion.status.value,
        "request_delta": completion.request_delta,
        "response": completion.response,
        "finish_reason": completion.finish_reason.value,
        "prompt_tokens": completion.prompt_token_count,
        "completion_tokens": completion.usage.completion_tokens,
        "policy_version": completion.policy_version_max,
    }


def _wall_s(timings: RolloutTimings) -> float | None:
    began, ended = timings.started_at_us, timings.exited_at_us
    return round((ended - began) / 1e6, 3) if began is not None and ended is not None else None
