"""The engine service: an engine of the configured kind, the follower beside it, and its telemetry."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, TypeVar

import aiohttp

from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.service.telemetry import report_gauges
from learner.serving.client import EngineClient
from learner.serving.errors import ServingError
from learner.serving.follower import Follower
from learner.serving.gauges import EngineGauges
from learner.serving.running import RunningEngine
from learner.serving.settings import EngineSettings

T = TypeVar("T")
EngineMaker = Callable[[ServiceContext, EngineSettings], AbstractAsyncContextManager[RunningEngine]]
_REQUEST_TIMEOUT = aiohttp.ClientTimeout(total=600.0, sock_connect=5.0)


async def run(ctx: ServiceContext, settings: EngineSettings, kafka: KafkaSettings) -> None:
    """Serves until the service is asked to stop. Serves its own `/livez`, `/readyz` and `/metrics`.

    Raises:
        ServingError: the model cannot be served, vLLM is not there, or the engine failed under way.
        PortInUse: another process listens on the engine's port.
    """
    async with AsyncExitStack() as exits:
        engine = await _unless_stopping(ctx, exits.enter_async_context(engine_maker(settings)(ctx, settings)))
        if engine is None:
            return
        ctx.log.info("engine answers", kind=settings.kind, url=engine.url, policy_id=settings.policy_id)
        producer = await exits.enter_async_context(RecordProducer(kafka, "engine"))
        # A connection each: vLLM closes one without notice after an error of its own.
        connector = aiohttp.TCPConnector(force_close=True)
        session = await exits.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=_REQUEST_TIMEOUT))
        client = EngineClient(session, engine.url)
        follower = Follower(client, settings.policy_id, ctx.log)
        gauges = EngineGauges(client, follower)
        labels = {"engine": settings.kind, "policy_id": settings.policy_id}
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(follower.follow(kafka), name="follower"),
                tasks.create_task(gauges.watch(), name="gauges"),
                tasks.create_task(_tell_ready(ctx, follower), name="ready"),
                tasks.create_task(report_gauges(ctx, producer, gauges.read, labels=labels), name="telemetry"),
            ]
            stopping = tasks.create_task(ctx.stopping.wait())
            await asyncio.wait([stopping, engine.failed], return_when=asyncio.FIRST_COMPLETED)
            for task in (*background, stopping):
                task.cancel()
        if engine.failed.done() and not ctx.stopping.is_set():
            error = engine.failed.result()
            raise error if isinstance(error, ServingError) else ServingError(f"the engine failed: {error!r}") from error


async def _unless_stopping(ctx: ServiceContext, starting: Coroutine[Any, Any, T]) -> T | None:
    """What is started, or None when the service is asked to stop before: vLLM takes a minute."""
    task = asyncio.create_task(starting)
    stopping = asyncio.create_task(ctx.stopping.wait())
    await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait([task])
    return None


async def _tell_ready(ctx: ServiceContext, follower: Follower) -> None:
    await follower.ready.wait()
    ctx.ready()


def engine_maker(settings: EngineSettings) -> EngineMaker:
    """What brings up an engine of the configured kind."""
    # Each brings what the other does not need: torch here, a child process there.
    if settings.kind == "vllm":
        from learner.serving.vllm.process import vllm_engine

        return vllm_engine
    from learner.serving.embedded.service import embedded_engine

    return embedded_engine
