"""What the assembler counts."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ingest.assembler.errors import BrokenTree
from ingest.assembler.state import Counters, PartitionState
from ingest.assembler.tree import ID_BYTES
from schemas import Topic, Trajectory


class AssemblerMetrics:
    """All of them are made on the service's own registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"forgestream_assembler_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"forgestream_assembler_{name}", text, registry=registry)

        self._records = counter("records", "Records read, by topic.", "topic")
        self._trajectories = counter("trajectories", "Trajectories written; reason: why not trainable.", "reason")
        self._problems = counter("problems", "Rollouts whose completions do not fit, evaluations included.", "reason")
        self._sampled = counter("sampled_tokens", "Tokens that the policy sampled, in trajectories written.")
        self._trained = counter("trained_tokens", "Tokens with a loss mask of 1, in trajectories written.")
        self._sequence = counter("sequence_tokens", "Tokens of all samples; forks repeat what they share.")
        self._late = counter("late_completions", "Completions that came after their rollout's trajectory.")
        self._doubled = counter("doubled_records", "Records that were there already.")
        self._abandoned = counter("abandoned_rollouts", "Rollouts given up because nothing was heard of them.")
        self.transaction_s = Histogram(
            "forgestream_assembler_transaction_seconds",
            "From begin to commit of one transaction.",
            registry=registry,
            buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5, 30),
        )
        self._open = gauge("open_rollouts", "Rollouts whose trajectory is not written yet.")
        self._open_bytes = gauge("open_bytes", "About what their tokens take in memory.")
        self._lag = gauge("lag_records", "Records of both inputs that were not read yet.")
        self.written_count = 0
        """Trajectories written by this process."""

    def read(self, topic: Topic, count: int) -> None:
        """Count records."""
        self._records.labels(topic.base_name).inc(count)

    def written(self, trajectory: Trajectory, broken: BrokenTree | None) -> None:
        """Count a trajectory that the log has taken."""
        self.written_count += 1
        self._trajectories.labels(trajectory.reason).inc()
        self._sampled.inc(trajectory.completion_tokens)
        self._trained.inc(trajectory.trained_tokens)
        self._sequence.inc(sum(len(sample.token_ids) // ID_BYTES for sample in trajectory.samples))
        if broken is not None:
            self._problems.labels(broken.reason).inc()

    def passed_over(self, counters: Counters) -> None:
        """Add what a partition passed over, and set its counters back."""
        self._late.inc(counters.late)
        self._doubled.inc(counters.doubled)
        self._abandoned.inc(counters.abandoned)
        counters.late = counters.doubled = counters.abandoned = 0

    def gauges(self, states: Iterable[PartitionState]) -> dict[str, float]:
        """Set the gauges from the partitions of this process; the same values for telemetry.v1."""
        states = list(states)
        rollouts = [rollout for state in states for rollout in state.open.values()]
        self._open.set(len(rollouts))
        self._open_bytes.set(sum(rollout.size_bytes for rollout in rollouts))
        self._lag.set(sum(state.lag_count for state in states))
        return {
            "lag_records": sum(state.lag_count for state in states),
            "rollouts_open": len(rollouts),
            "partitions": len(states),
            "trajectories_written": self.written_count,
        }
