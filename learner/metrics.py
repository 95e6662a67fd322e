"""What the learner says about itself: gauges for telemetry.v1 and for Prometheus."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily

Clock = Callable[[], float]


class WaitMeter:
    """Seconds that the learner waited for trajectories, and the share of them in recent time.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._waited_s = 0.0
        self._since: float | None = None
        self._mark = (clock(), 0.0)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time spent in the block is waiting."""
        self._since = self._clock()
        try:
            yield
        finally:
            self._waited_s, self._since = self.waited_s, None

    @property
    def waited_s(self) -> float:
        """Seconds waited so far."""
        return self._waited_s + (self._clock() - self._since if self._since is not None else 0.0)

    def share(self) -> float:
        """Share of the time since the last call that was waiting, 0 to 1."""
        now, waited = self._clock(), self.waited_s
        (then, waited_then), self._mark = self._mark, (now, waited)
        return min(1.0, (waited - waited_then) / (now - then)) if now > then else 0.0


_HELP = {
    "groups_consumed": "Groups trained or dropped since the run began.",
    "groups_dropped": "Groups given up since the run began.",
    "groups_open": "Groups that wait for members.",
    "groups_ready": "Groups that wait for a step.",
    "policy_version": "Policy version of the learner's weights.",
    "step": "Optimizer steps of the run.",
    "wait_s": "Seconds that this process waited for trajectories.",
    "trajectories_late": "Trajectories that came after their group was given up.",
}


def expose(registry: CollectorRegistry, gauges: Callable[[], Mapping[str, float]]) -> None:
    """Offer the gauges on `/metrics` as `forgestream_learner_…`, read at each scrape."""

    class Collector:
        def collect(self) -> Iterator[GaugeMetricFamily]:
            for name, value in gauges().items():
                yield GaugeMetricFamily(f"forgestream_learner_{name}", _HELP[name], value=value)

    registry.register(Collector())  # type: ignore[arg-type]
