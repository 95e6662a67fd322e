"""What the training loop is doing, as its own log tells it. Pure: records in, a snapshot out."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from schemas import (
    Completion,
    CompletionStatus,
    Policy,
    Record,
    RolloutEvent,
    RolloutEventKind,
    Step,
    Task,
    Telemetry,
    Trajectory,
)

RATE_WINDOW_S = 10.0
RECENT_REWARDS = 64
Purpose = Literal["training", "evaluation"]


@dataclass
class LoopState:
    """Counts since the first record that was observed."""

    tasks: int = 0
    open_rollouts: dict[str, RolloutEventKind] = field(default_factory=dict)
    """Rollouts that have not finished, with the last thing that happened to them."""
    finished: Counter[str] = field(default_factory=Counter)
    """Finished rollouts by end reason."""
    groups_finished: Counter[Purpose] = field(default_factory=Counter)
    """Groups all of whose rollouts finished, by purpose."""
    completions: int = 0
    completion_tokens: int = 0
    trajectories: int = 0
    trainable: int = 0
    steps: list[Step] = field(default_factory=list)
    policy: Policy | None = None
    gauges: dict[str, Telemetry] = field(default_factory=dict)
    """The newest telemetry of each source."""
    rewards: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_REWARDS))
    """Rewards of the newest training rollouts."""
    _recent: deque[tuple[float, int, int]] = field(default_factory=deque)
    """(when in s, completions, tokens) within the rate window."""
    _finished_of: Counter[str] = field(default_factory=Counter)
    """Finished rollouts of groups that have not finished."""

    @property
    def rollouts_finished(self) -> int:
        """Rollouts that ended, in whatever way."""
        return self.finished.total()

    @property
    def policy_version(self) -> int | None:
        """The newest version announced; None before the first."""
        return self.policy.version if self.policy else None

    def gauge(self, source: str, name: str) -> float | None:
        """The newest value of a gauge; None when it was never told."""
        record = self.gauges.get(source)
        return record.gauges.get(name) if record else None

    def observe(self, record: Record, at_s: float) -> None:
        """Take one record into account; `at_s` is the log's time of it, epoch seconds."""
        match record:
            case Completion():
                self._completion(record, at_s)
            case RolloutEvent():
                self._event(record)
            case Trajectory():
                self.trajectories += 1
                self.trainable += record.trainable
            case Telemetry():
                self.gauges[record.source] = record
            case Step():
                self.steps = [s for s in self.steps if s.step < record.step] + [record]
            case Policy():
                self.policy = record
            case Task():
                self.tasks += 1
            case _:
                pass

    def _completion(self, completion: Completion, at_s: float) -> None:
        if completion.status is CompletionStatus.DELIVERED:
            tokens = len(completion.completion_token_ids) // 4
            self.completions += 1
            self.completion_tokens += tokens
            self._recent.append((at_s, 1, tokens))

    def _event(self, event: RolloutEvent) -> None:
        if event.kind is not RolloutEventKind.FINISHED:
            self.open_rollouts[event.rollout_id] = event.kind
            return
        self.open_rollouts.pop(event.rollout_id, None)
        self.finished[event.end_reason or "UNKNOWN"] += 1
        self._finished_of[event.group_id] += 1
        if self._finished_of[event.group_id] >= event.group_size:
            del self._finished_of[event.group_id]
            self.groups_finished["evaluation" if event.evaluation else "training"] += 1
        if event.reward is not None and not event.evaluation:
            self.rewards.append(event.reward)

    def rates(self, now_s: float) -> tuple[float, float]:
        """Completions and sampled tokens a second over the last ten seconds."""
        while self._recent and self._recent[0][0] < now_s - RATE_WINDOW_S:
            self._recent.popleft()
        calls = sum(count for _, count, _ in self._recent)
        tokens = sum(tokens for _, _, tokens in self._recent)
        return calls / RATE_WINDOW_S, tokens / RATE_WINDOW_S

    def snapshot(self, now_s: float) -> dict[str, Any]:
        """The figures of a status line: plain JSON values."""
        calls_per_s, tokens_per_s = self.rates(now_s)
        last = self.steps[-1] if self.steps else None
        return {
            "tasks": self.tasks,
            "rollouts_open": len(self.open_rollouts),
            "rollouts_finished": self.rollouts_finished,
            "completions": self.completions,
            "completions_per_s": round(calls_per_s, 2),
            "tokens_per_s": round(tokens_per_s, 1),
            "trajectories": self.trajectories,
            "step": last.step if last else 0,
            "policy_version": self.policy_version,
            "reward_recent": round(sum(self.rewards) / len(self.rewards), 3) if self.rewards else None,
            "delta_mean": _rounded(last.metrics if last else {}, "delta_mean"),
            "lag": {source: lag for source, record in self.gauges.items() if (lag := _lag(record.gauges)) is not None},
        }


def _lag(gauges: Mapping[str, float]) -> float | None:
    lags = [value for name, value in gauges.items() if "lag" in name.split("_")]
    return sum(lags) if lags else None


def _rounded(metrics: Mapping[str, float], name: str) -> float | None:
    return round(metrics[name], 4) if name in metrics else None
