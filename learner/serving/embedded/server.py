"""The embedded engine's HTTP server: the contract of `learner.serving.protocol` on aiohttp."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from aiohttp import web

from ingest.service.context import ServiceContext
from ingest.service.health import readiness
from ingest.service.metrics import exposition
from learner.serving.embedded import replies, requests
from learner.serving.embedded.loop import EngineLoop
from learner.serving.embedded.model import PackedModel, Weights
from learner.serving.embedded.sampler import Sampled
from learner.serving.embedded.scheduler import Delta, Sequence
from learner.serving.errors import RequestRefused, WeightsRefused

_MAX_BODY_BYTES = 64 << 20
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(engine: "EngineApi", ctx: ServiceContext) -> web.Application:
    """The application with all routes. Run it with `handler_cancellation=True`, so that a hang-up aborts."""
    app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors_as_json])

    async def readyz(_request: web.Request) -> web.Response:
        status, body = readiness(ctx)
        return web.json_response(body, status=status)

    async def metrics(_request: web.Request) -> web.Response:
        text, content_type = exposition(ctx.registry)
        return web.Response(body=text, headers={"Content-Type": content_type})

    app.add_routes(
        [
            web.get("/health", engine.health),
            web.get("/livez", engine.health),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
            web.post("/inference/v1/generate", engine.generate),
            web.post("/inference/v1/abort_requests", engine.abort_requests),
            web.post("/pause", engine.pause),
            web.post("/resume", engine.resume),
            web.get("/is_paused", engine.is_paused),
            web.post("/init_weight_transfer_engine", engine.init_weight_transfer),
            web.post("/start_weight_update", engine.start_weight_update),
            web.post("/update_weights", engine.update_weights),
            web.post("/finish_weight_update", engine.finish_weight_update),
            web.post("/update_weight_version", engine.update_weight_version),
            web.get("/weight_info", engine.weight_info),
        ]
    )
    return app


@web.middleware
async def _errors_as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRefused as error:
        return web.json_response(replies.error(str(error), error.status, error.parameter), status=error.status)
    except WeightsRefused as error:
        return web.json_response(replies.error(str(error), 400), status=400)


class EngineApi:
    """The handlers, and the weight update that is under way."""

    def __init__(self, model: PackedModel, loop: EngineLoop, name: str) -> None:
        self._model = model
        self._loop = loop
        self._name = name
        self._updating = False
        self._update: Weights | None = None

    async def health(self, _request: web.Request) -> web.Response:
        """200 while the engine works."""
        return web.Response(status=503 if self._loop.failed.done() else 200)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Samples one completion."""
        wanted = requests.parse(await request.read())
        sequence = requests.to_sequence(
            wanted,
            model=self._name,
            context_tokens=self._model.context_tokens,
            vocabulary=self._model.vocabulary,
            stop_ids=self._model.stop_ids,
            header_id=request.headers.get("X-Request-Id"),
        )
        if wanted.stream:
            return await self._stream(
                request, sequence, bool(wanted.stream_options and wanted.stream_options.include_usage)
            )
        tokens: list[Sampled] = []
        last: Delta | None = None
        async with aclosing(self._deltas(sequence)) as deltas:
            async for last in deltas:
                if last.new is not None:
                    tokens.append(last.new)
        if last is None or last.finish_reason in (None, "error"):
            return web.json_response(replies.error("the engine failed", 500), status=500)
        return web.json_response(replies.whole(sequence, self._name, tokens, str(last.finish_reason), last.stop_reason))

    async def _stream(self, request: web.Request, sequence: Sequence, include_usage: bool) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        async with aclosing(self._deltas(sequence)) as deltas:
            async for delta in deltas:
                if delta.finish_reason == "error":
                    await _send(response, replies.error("the engine failed", 500))
                    break
                new = [delta.new] if delta.new is not None else []
                await _send(response, replies.chunk(sequence, new, delta.finish_reason, delta.stop_reason))
        if include_usage:
            await _send(response, replies.usage_chunk(sequence))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _deltas(self, sequence: Sequence) -> AsyncGenerator[Delta]:
        """Submits the sequence and yields what comes; a caller that goes away early aborts it."""
        sequence.owner = asyncio.Queue()
        self._loop.submit(sequence)
        finished = False
        try:
            while not finished:
                delta: Delta = await sequence.owner.get()
                finished = delta.finish_reason is not None
                yield delta
        finally:
            if not finished:
                self._loop.abort(lambda other: other is sequence)

    async def abort_requests(self, request: web.Request) -> web.Response:
        """Ends requests by the ids that they were answered with."""
        ids = (await _json(request)).get("request_ids")
        if not isinstance(ids, list):
            raise RequestRefused("Missing 'request_ids' in request body", parameter="request_ids")
        self._loop.abort(lambda sequence: sequence.request_id in ids)
        return web.Response()

    async def pause(self, request: web.Request) -> web.Response:
        """Holds all requests between two steps."""
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "keep"):
            raise RequestRefused(f"pause mode {mode!r} is not known here: use keep or abort", parameter="mode")
        if mode == "abort":
            self._loop.abort(lambda sequence: True)
        await self._loop.pause(clear_cache=request.query.get("clear_cache", "true").lower() != "false")
        return web.json_response({"status": "paused"})

    async def resume(self, _request: web.Request) -> web.Response:
        """Goes on."""
        await self._loop.resume()
        return web.json_response({"status": "resumed"})

    async def is_paused(self, _request: web.Request) -> web.Response:
        """Whether requests are held."""
        return web.json_response({"is_paused": self._loop.paused})

    async def init_weight_transfer(self, request: web.Request) -> web.Response:
        """Nothing to agree on beforehand."""
        if (await _json(request)).get("init_info") != {}:
            raise RequestRefused("init_info must be {}: weights are read from folders", parameter="init_info")
        return web.json_response({"message": "Weight transfer initialized"})

    async def start_weight_update(self, _request: web.Request) -> web.Response:
        """Begins an update."""
        if self._updating:
            raise WeightsRefused("a weight update is under way: finish it first")
        self._updating = True
        return web.json_response({"message": "Weight update started"})

    async def update_weights(self, request: web.Request) -> web.Response:
        """Reads and checks the new weights; they are put in place when the update is finished."""
        if not self._updating:
            raise WeightsRefused("start_weight_update must be called before update_weights")
        self._updating = False  # a refusal ends the update
        info = (await _json(request)).get("update_info")
        if not isinstance(info, dict) or not isinstance(info.get("path"), str):
            raise WeightsRefused('update_info must be {"path": FOLDER}')
        self._update = await asyncio.to_thread(self._model.read_weights, Path(info["path"]))
        self._updating = True
        return web.json_response({"message": "Weights updated"})

    async def finish_weight_update(self, request: web.Request) -> web.Response:
        """Puts the new weights and their name in place, between two steps: no token sees one without the other."""
        if not self._updating:
            raise WeightsRefused("finish_weight_update called without a matching start_weight_update")
        name = (await _json(request)).get("weight_version")
        weights, self._update, self._updating = self._update, None, False
        scheduler = self._loop.scheduler

        def apply() -> None:
            if weights is not None:
                self._model.load_weights(weights)
                scheduler.drop_caches(running=False)
            if name is not None:
                scheduler.version = str(name)

        await self._loop.between_steps(apply)
        return web.json_response({"message": "Weight update finished"})

    async def update_weight_version(self, request: web.Request) -> web.Response:
        """Renames the weights in use."""
        name = (await _json(request)).get("new_version")
        if not isinstance(name, str):
            raise RequestRefused("new_version must be a string", parameter="new_version")
        scheduler = self._loop.scheduler
        await self._loop.between_steps(lambda: setattr(scheduler, "version", name))
        return web.json_response({"success": True, "new_version": name})

    async def weight_info(self, _request: web.Request) -> web.Response:
        """The name of the weights in use."""
        return web.json_response({"weight_version": self._loop.scheduler.version})


async def _send(response: web.StreamResponse, value: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n")


async def _json(request: web.Request) -> dict[str, Any]:
    body = await request.read()
    try:
        value = json.loads(body) if body else {}
    except ValueError as error:
        raise RequestRefused(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestRefused("the body must be a JSON object")
    return value
