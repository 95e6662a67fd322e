"""The launcher's Prometheus metrics."""

from prometheus_client import CollectorRegistry, Counter, Gauge

from schemas import EndReason


class LauncherMetrics:
    """Counters and gauges of one launcher."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.running = Gauge("forgestream_rollouts_running", "Rollouts that run now.", registry=registry)
        self.queued = Gauge(
            "forgestream_rollouts_queued", "Rollouts that wait for a place or at the gate.", registry=registry
        )
        self.groups = Gauge("forgestream_groups_outstanding", "Groups begun and not ended.", registry=registry)
        self.in_flight = Gauge(
            "forgestream_groups_in_flight",
            "Training groups launched that the learner has not consumed.",
            registry=registry,
        )
        self._finished = Counter(
            "forgestream_rollouts_finished", "Rollouts that ended.", ["end_reason"], registry=registry
        )
        self._retried = Counter(
            "forgestream_attempts_failed",
            "Attempts that the platform failed and that were tried again.",
            registry=registry,
        )

    def finished(self, reason: EndReason) -> None:
        """A rollout ended."""
        self._finished.labels(reason.value).inc()

    def retried(self) -> None:
        """An attempt failed and is tried again."""
        self._retried.inc()
