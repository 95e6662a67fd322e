"""The proxy as a service: its parts put together, started in order, and stopped without losing a completion."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.service.telemetry import report_gauges
from ingest.settings import AuthSettings
from proxy.calls import Calls
from proxy.engine.client import EngineClient
from proxy.errors import ModelFolderError, ProxyError
from proxy.exchange import Exchange, Parts
from proxy.http.app import create_app
from proxy.http.bearers import Bearers
from proxy.http.gateway import Gateway
from proxy.http.server import Server, listen, server
from proxy.metrics import ProxyMetrics
from proxy.prompting import Prompter
from proxy.recorder import Recorder
from proxy.rendering.folder import load_model_folder
from proxy.rendering.renderer import Renderer
from proxy.sessions.attempts import Attempts
from proxy.sessions.endings import follow_endings
from proxy.settings import ProxySettings

_DRAIN_S = 15.0  # what is in flight at a stop may end by itself for so long
_LINGER_MS = 0.0  # a harness waits for every acknowledgement


async def run(ctx: ServiceContext, settings: ProxySettings, kafka: KafkaSettings, auth: AuthSettings) -> None:
    """Serve until `ctx.stopping`.

    Raises:
        ProxyError: the model folder cannot be used, or the secret is missing.
        PortInUse: another process listens on the port.
        TopicMismatch: rollouts.v1 does not exist.
    """
    if not auth.secret.get_secret_value():
        raise ProxyError("no secret to verify rollout tokens with: set FORGESTREAM_AUTH__SECRET, the launcher's too")
    if settings.model is None:
        raise ModelFolderError("no model folder: set FORGESTREAM_PROXY__MODEL to the policy's")
    folder = await asyncio.to_thread(load_model_folder, settings.model, context_tokens=settings.context_tokens)
    renderer, metrics = Renderer(folder), ProxyMetrics(ctx.registry)
    ctx.log.info(
        "model read",
        folder=str(folder.path),
        context_tokens=folder.context_tokens,
        stop_ids=sorted(renderer.stop_ids),
        tools="template" if renderer.renders_tools else "written as text",
        template_digest=folder.template_digest,
    )
    with listen(ctx.name, settings.host, settings.port) as listener:
        async with _parts(ctx, settings, kafka, renderer, metrics) as (parts, producer):
            calls = Calls(parts)
            gateway = Gateway(
                calls,
                Bearers(auth.secret.get_secret_value()),
                metrics,
                ctx.log,
                body_limit_bytes=settings.body_limit_bytes,
                keep_alive_s=settings.keep_alive_s,
            )
            http = server(create_app(ctx, gateway))
            following = asyncio.Event()
            endings = asyncio.create_task(follow_endings(kafka, parts.attempts, ctx.log, following))
            serving = asyncio.create_task(http.serve(sockets=[listener]))
            gauges = asyncio.create_task(report_gauges(ctx, producer, lambda: _gauges(calls, parts), interval_s=5.0))
            ready = asyncio.create_task(_ready_when(ctx, http, following))
            ctx.log.info("listening", host=settings.host, port=listener.getsockname()[1], engines=settings.engines)
            try:
                await _stopping_or_failed(ctx, endings, serving, gauges)
            finally:
                ready.cancel()
                endings.cancel()
                http.should_exit = True
                await _drain(calls)
                await asyncio.wait([ready, endings, serving])
            await gauges


@asynccontextmanager
async def _parts(
    ctx: ServiceContext, settings: ProxySettings, kafka: KafkaSettings, renderer: Renderer, metrics: ProxyMetrics
) -> AsyncIterator[tuple[Parts, RecordProducer]]:
    producer = RecordProducer(
        kafka, "forgestream-proxy", linger_ms=_LINGER_MS, delivery_timeout_s=settings.delivery_timeout_s
    )
    engines = EngineClient(
        settings.engines,
        ctx.log,
        retry_s=settings.engine_retry_s,
        silence_s=settings.engine_silence_s,
        on_retry=metrics.engine_retries.inc,
    )
    attempts: Attempts[Exchange] = Attempts(idle_s=settings.rollout_idle_s, chain_bytes=settings.chain_memory_bytes)
    metrics.attempts.set_function(lambda: len(attempts))
    metrics.chain_bytes.set_function(lambda: attempts.size_bytes)
    async with producer, engines:
        recorder = Recorder(producer)
        prompter = Prompter(renderer, recorder, metrics, ctx.log)
        yield Parts(renderer, prompter, engines, recorder, attempts, metrics, ctx.log), producer


async def _ready_when(ctx: ServiceContext, http: Server, following: asyncio.Event) -> None:
    await following.wait()
    await http.serving.wait()
    if not ctx.stopping.is_set():
        ctx.ready()


async def _stopping_or_failed(ctx: ServiceContext, *tasks: asyncio.Task[None]) -> None:
    """Returns when the service is asked to stop; raises what ended one of its tasks."""
    stopping = asyncio.create_task(ctx.stopping.wait())
    try:
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stopping.cancel()


async def _drain(calls: Calls) -> None:
    """Calls in flight end by themselves, or are ended on record."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            await calls.idle()
    await calls.close("the proxy is stopping")


def _gauges(calls: Calls, parts: Parts) -> dict[str, float]:
    return {
        "in_flight": len(calls),
        "attempts": len(parts.attempts),
        "chain_bytes": parts.attempts.size_bytes,
    }
