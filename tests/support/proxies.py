"""A proxy in the test's own loop, in front of a scripted engine, with its log at hand."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from deploy.local.processes import free_ports
from ingest.bearer import Bearer, mint
from ingest.kafka.consumer import read_all
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.settings import AuthSettings
from proxy.service import run
from proxy.settings import ProxySettings
from schemas import Completion
from schemas.topics import COMPLETIONS

SECRET = "a secret of thirty-two characters"


@dataclass
class RunningProxy:
    """A proxy, and how to speak to it."""

    port: int
    kafka: KafkaSettings
    ctx: ServiceContext

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, rollout: str = "r0", attempt: int = 1, **further: Any) -> str:
        claims = {"group_id": "g0", "exp": int(time.time()) + 600} | further
        return mint(Bearer(rollout_id=rollout, attempt=attempt, **claims), SECRET)

    def client(self, rollout: str = "r0", attempt: int = 1, *, max_retries: int = 0, **further: Any) -> AsyncOpenAI:
        return AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key=self.token(rollout, attempt, **further), max_retries=max_retries
        )

    async def completions(self, rollout: str | None = "r0") -> list[Completion]:
        """What is recorded now, in the order of the calls."""
        records = [received.record for received in await read_all(self.kafka, COMPLETIONS)]
        mine = [record for record in records if rollout is None or record.rollout_id == rollout]
        return sorted(mine, key=lambda record: record.call_index)


@asynccontextmanager
async def running_proxy(
    kafka: KafkaSettings, model: Path, *engines: str, secret: str = SECRET, **settings: Any
) -> AsyncIterator[RunningProxy]:
    """A proxy that is ready; stopped as SIGTERM stops it."""
    (port,) = free_ports(1)
    stopping = asyncio.Event()
    ctx = ServiceContext("proxy", structlog.get_logger("test"), CollectorRegistry(), stopping)
    configured = ProxySettings(port=port, model=model, engines=engines, **settings)
    running = asyncio.create_task(run(ctx, configured, kafka, AuthSettings(secret=SecretStr(secret))))
    try:
        async with asyncio.timeout(30):
            while not ctx.is_ready and not running.done():
                await asyncio.sleep(0.01)
        if running.done():
            await running
        yield RunningProxy(port, kafka, ctx)
    finally:
        stopping.set()
        await running
