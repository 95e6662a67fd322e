"""The ASGI application."""

import os

from litestar import Litestar, Response, asgi, get
from litestar.types import ASGIApp, Receive, Scope, Send

from ingest.service.context import ServiceContext
from ingest.service.health import readiness
from ingest.service.metrics import exposition


def create_app(ctx: ServiceContext, gateway: ASGIApp) -> Litestar:
    """Health and metrics as routes; everything else goes to the gateway, mounted raw, which is the cheap way."""

    @asgi("/", is_mount=True, copy_scope=False)
    async def model_routes(scope: Scope, receive: Receive, send: Send) -> None:
        await gateway(scope, receive, send)

    @get("/livez", sync_to_thread=False)
    def livez() -> dict[str, object]:
        return {"service": ctx.name, "pid": os.getpid()}

    @get("/readyz", sync_to_thread=False)
    def readyz() -> Response[dict[str, object]]:
        status, body = readiness(ctx)
        return Response(body, status_code=status)

    @get("/metrics", sync_to_thread=False)
    def metrics() -> Response[bytes]:
        text, content_type = exposition(ctx.registry)
        return Response(text, media_type=content_type)

    return Litestar(
        [model_routes, livez, readyz, metrics], openapi_config=None, logging_config=None, request_max_body_size=None
    )
