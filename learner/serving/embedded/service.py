"""Brings the embedded engine up and takes it down."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from ingest.service.context import ServiceContext
from ingest.service.errors import PortInUse
from learner.serving.embedded.loop import EngineLoop
from learner.serving.embedded.metrics import EngineCollector
from learner.serving.embedded.model import PackedModel
from learner.serving.embedded.scheduler import Scheduler
from learner.serving.embedded.server import EngineApi, make_app
from learner.serving.running import RunningEngine
from learner.serving.settings import EngineSettings
from learner.serving.versions import weight_version


@asynccontextmanager
async def embedded_engine(ctx: ServiceContext, settings: EngineSettings) -> AsyncIterator[RunningEngine]:
    """The engine, answering while the block runs. At its end, requests under way end with `abort`.

    Raises:
        ModelRefused: the model folder cannot be served.
        PortInUse: another process listens on the port.
    """
    began = time.monotonic()
    options = settings.embedded
    model = await asyncio.to_thread(PackedModel, settings.model, options.device, settings.context_tokens)
    ctx.log.info("model loaded", folder=str(settings.model), seconds=round(time.monotonic() - began, 2))
    scheduler = Scheduler(
        model,
        weight_version(settings.policy_id, 0),
        max_running=settings.max_running,
        step_tokens=options.step_tokens,
        prompt_cache_tokens=options.prompt_cache_tokens,
    )
    loop = EngineLoop(scheduler, settings.threads)
    collector = EngineCollector(loop, settings.policy_id)
    ctx.registry.register(collector)
    app = make_app(EngineApi(model, loop, settings.policy_id), ctx)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=2.0)
    await runner.setup()
    try:
        loop.start()
        port = await _listen(ctx.name, runner, settings)
        yield RunningEngine(f"http://{settings.host}:{port}", loop.failed)
    finally:
        await loop.stop()
        await runner.cleanup()
        ctx.registry.unregister(collector)


async def _listen(service: str, runner: web.AppRunner, settings: EngineSettings) -> int:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(service, settings.host, settings.port) from error
        raise
    return runner.addresses[0][1]
