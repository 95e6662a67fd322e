"""What the engine tells telemetry.v1: read from its metrics, so that it is the same for either engine."""

import asyncio
import time

from learner.serving.client import EngineClient
from learner.serving.errors import EngineUnreachable
from learner.serving.follower import Follower

_GENERATED = "vllm:generation_tokens_total"
_BUSY = "forgestream_engine_busy_seconds_total"


class EngineGauges:
    """`policy_version`, `tokens_per_s`, `requests_running`, `requests_waiting`, `busy_share` of the last stretch."""

    def __init__(self, engine: EngineClient, follower: Follower) -> None:
        self._engine = engine
        self._follower = follower
        self._latest: dict[str, float] = {}
        self._before: tuple[float, dict[str, float]] | None = None

    def read(self) -> dict[str, float]:
        """The newest figures."""
        return {"policy_version": float(self._follower.version), **self._latest}

    async def watch(self, interval_s: float = 1.0) -> None:
        """Asks the engine again and again until cancelled; an engine that does not answer has no figures."""
        while True:
            try:
                self._update(time.monotonic(), await self._engine.metrics())
            except EngineUnreachable:
                self._latest, self._before = {}, None
            await asyncio.sleep(interval_s)

    def _update(self, now: float, values: dict[str, float]) -> None:
        running = values.get("vllm:num_requests_running", 0.0)
        self._latest = {"requests_running": running, "requests_waiting": values.get("vllm:num_requests_waiting", 0.0)}
        if self._before is not None:
            then, old = self._before
            elapsed_s = now - then
            self._latest["tokens_per_s"] = (values.get(_GENERATED, 0.0) - old.get(_GENERATED, 0.0)) / elapsed_s
            # vLLM does not count its busy seconds: whether requests run at the moment is the best there is.
            busy_s = values[_BUSY] - old.get(_BUSY, 0.0) if _BUSY in values else elapsed_s * (running > 0)
            self._latest["busy_share"] = min(1.0, busy_s / elapsed_s)
        self._before = (now, values)
