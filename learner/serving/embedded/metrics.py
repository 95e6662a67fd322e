"""The embedded engine's figures for Prometheus, under vLLM's names, so that whoever reads one engine reads both."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from learner.serving.embedded.loop import EngineLoop

_LABELS = ("model_name", "engine")


class EngineCollector(Collector):
    """Reads the engine whenever it is scraped."""

    def __init__(self, loop: EngineLoop, model: str) -> None:
        self._loop = loop
        self._values = (model, "0")

    def collect(self) -> Iterator[Metric]:
        """The metric families."""
        scheduler = self._loop.scheduler
        counters = scheduler.counters
        for name, text, value in (
            ("vllm:num_requests_running", "Requests that take part in steps.", len(scheduler.running)),
            ("vllm:num_requests_waiting", "Requests in the queue.", len(scheduler.waiting)),
        ):
            gauge = GaugeMetricFamily(name, text, labels=_LABELS)
            gauge.add_metric(self._values, value)
            yield gauge
        for name, text, value in (
            ("vllm:prompt_tokens", "Prompt tokens of admitted requests.", counters.prompt_tokens),
            ("vllm:generation_tokens", "Tokens sampled.", counters.generation_tokens),
            ("forgestream_engine_cached_tokens", "Prompt tokens found in a cache.", counters.cached_tokens),
            ("forgestream_engine_computed_tokens", "Tokens put through the model.", counters.computed_tokens),
            ("forgestream_engine_steps", "Forward passes.", counters.steps),
            ("forgestream_engine_busy_seconds", "Seconds spent in steps.", self._loop.busy_s),
        ):
            counter = CounterMetricFamily(name, text, labels=_LABELS)
            counter.add_metric(self._values, value)
            yield counter
