"""What the proxy tells Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ProxyMetrics:
    """Counters of one proxy process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = Counter(
            "forgestream_proxy_requests",
            "Model calls by dialect and outcome.",
            ["dialect", "outcome"],
            registry=registry,
        )
        self.phases = Histogram(
            "forgestream_proxy_phase_seconds",
            "Where a call's time goes: render, engine, ack, total.",
            ["phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        # Looked up once: a label costs as much as the observation.
        self.render_s, self.engine_s, self.ack_s, self.total_s = map(
            self.phases.labels, ("render", "engine", "ack", "total")
        )
        self.tokens = Counter("forgestream_proxy_tokens", "Prompt and sampled tokens.", ["kind"], registry=registry)
        self.prompt_tokens, self.sampled_tokens = map(self.tokens.labels, ("prompt", "sampled"))
        self.in_flight = Gauge("forgestream_proxy_in_flight", "Calls being answered.", registry=registry)
        self.prompts = Counter(
            "forgestream_proxy_prompts",
            "How prompts came about: continued, forked, root (nothing matches), refused (the bridge does not hold).",
            ["origin"],
            registry=registry,
        )
        self.repeats = Counter(
            "forgestream_proxy_repeats",
            "Calls that were not sampled again: joined, replayed.",
            ["kind"],
            registry=registry,
        )
        self.engine_retries = Counter(
            "forgestream_proxy_engine_retries", "Requests to an engine that were tried again.", registry=registry
        )
        self.cuts = Counter(
            "forgestream_proxy_engine_cuts", "Streams of an engine that were cut and taken up again.", registry=registry
        )
        self.unaligned = Counter(
            "forgestream_proxy_unaligned", "Completions that are not trained: ids, logprobs or versions do not align.",
            registry=registry,
        )  # fmt: skip
        self.malformed_calls = Counter(
            "forgestream_proxy_malformed_calls",
            "Tool calls that did not parse and went out as text.",
            registry=registry,
        )
        self.not_recorded = Counter(
            "forgestream_proxy_not_recorded",
            "Calls refused because the log did not take their record.",
            registry=registry,
        )
        self.attempts = Gauge("forgestream_proxy_attempts", "Rollout attempts that are remembered.", registry=registry)
        self.chain_bytes = Gauge(
            "forgestream_proxy_chain_bytes", "Memory of recorded conversations.", registry=registry
        )
