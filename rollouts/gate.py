"""The staleness gate: training groups are launched only a little ahead of what the learner has consumed.

Samples grow stale while they wait for the learner. The gate counts training groups launched and the learner's own
`groups_consumed` (trained or dropped, from telemetry.v1), and lets a new group start while the difference is below
`groups_in_flight`. Evaluation groups never pass here. Pure: time is handed in, in seconds of one clock.

It can always open again:

* no learner was ever heard: a full gate waits `grace_s`, then opens for good, so that tasks run without a learner;
* the learner is alive, every group launched has ended, and still nothing was consumed for `stall_s`: what was counted
  is forgotten (another run, or groups that this learner will never see);
* a learner that stopped talking keeps the gate as it is: it is expected back.
"""

from dataclasses import dataclass

_FORGET_LAUNCHER_S = 10.0
_ALIVE_S = 30.0


@dataclass
class StalenessGate:
    """Counts groups in flight. `limit` 0 switches it off."""

    limit: int
    grace_s: float
    stall_s: float
    launched: int = 0
    """Training groups launched from the partitions of this launcher, over all its restarts."""
    _forgotten: int = 0
    _consumed: float | None = None
    _moved_at: float = 0.0
    _heard_at: float = 0.0
    _shut_at: float | None = None

    def __post_init__(self) -> None:
        self._others: dict[str, tuple[int, float]] = {}

    def learner_says(self, consumed: float, now: float) -> None:
        """The learner's `groups_consumed`."""
        if consumed != self._consumed:
            self._moved_at = now
        self._consumed = consumed
        self._heard_at = now

    def launcher_says(self, instance: str, launched: float, now: float) -> None:
        """Another launcher's `launched`: the limit holds for all launchers together."""
        self._others[instance] = (int(launched), now)

    def in_flight(self, now: float) -> int:
        """Training groups launched that the learner has not consumed."""
        others = sum(launched for launched, at in self._others.values() if now - at < _FORGET_LAUNCHER_S)
        return max(0, self.launched + others - self._forgotten - int(self._consumed or 0))

    def may_launch(self, now: float, *, running_groups: int) -> bool:
        """Whether another training group may start; `running_groups` have not ended yet."""
        if not self.limit or self.in_flight(now) < self.limit:
            self._shut_at = None
            return True
        if self._shut_at is None:
            self._shut_at = now
        if self._consumed is None:
            return now - self._shut_at >= self.grace_s
        if running_groups:
            self._moved_at = now  # the learner cannot consume what has not ended
        elif now - self._heard_at < _ALIVE_S and now - max(self._moved_at, self._shut_at) >= self.stall_s:
            self.forget(now)
            return True
        return False

    def forget(self, now: float) -> None:
        """Count anew: everything launched so far is taken as consumed."""
        self._forgotten += self.in_flight(now)
        self._shut_at = None
        self._moved_at = now
