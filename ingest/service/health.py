"""`/livez`, `/readyz` and `/metrics` for services that have no HTTP server of their own."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from ingest.service.context import ServiceContext
from ingest.service.errors import PortInUse
from ingest.service.metrics import exposition
from ingest.service.settings import ServiceSettings


def readiness(ctx: ServiceContext) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON body of `/readyz`. The pid tells a supervisor that its own child answers."""
    body = {"service": ctx.name, "pid": os.getpid(), "ready": ctx.is_ready, "reason": ctx.reason}
    return (200 if ctx.is_ready else 503), body


@asynccontextmanager
async def health_server(ctx: ServiceContext, settings: ServiceSettings) -> AsyncIterator[int]:
    """Serve the three routes while the block runs; yields the port.

    Raises:
        PortInUse: another process listens there.
    """

    async def livez(_request: web.Request) -> web.Response:
        return web.json_response({"service": ctx.name, "pid": os.getpid()})

    async def readyz(_request: web.Request) -> web.Response:
        status, body = readiness(ctx)
        return web.json_response(body, status=status)

    async def metrics(_request: web.Request) -> web.Response:
        text, content_type = exposition(ctx.registry)
        return web.Response(body=text, headers={"Content-Type": content_type})

    app = web.Application()
    app.add_routes([web.get("/livez", livez), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield await _listen(ctx.name, runner, settings)
    finally:
        await runner.cleanup()


async def _listen(service: str, runner: web.AppRunner, settings: ServiceSettings) -> int:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(service, settings.host, settings.port) from error
        raise
    return runner.addresses[0][1]
