"""A small proxy for tests of the launcher: OpenAI chat in, scripted replies out, completions recorded for real.

It has the real one's outer behaviour: the bearer in the path is verified, and a completion is in the log before the
last byte of its reply. Behind it is a function instead of a model.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ingest.bearer import Bearer, BearerError, verify
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from schemas import Completion, CompletionStatus, CompletionTimings, FinishReason
from schemas.ids import completion_id, now_us
from schemas.topics import COMPLETIONS


@dataclass
class Reply:
    """What the model says. With `error_code` the call is refused with status 400 and recorded as failed."""

    text: str = ""
    finish: str = "stop"
    bash: str | None = None
    """A call of the tool `bash` with this command."""
    error_code: str = ""
    delay_s: float = 0.0


Script = Callable[[Bearer, list[dict[str, Any]]], Reply | Awaitable[Reply]]


@dataclass
class StandIn:
    """A running stand-in."""

    url: str
    secret: str
    script: Script
    requests: list[tuple[Bearer, dict[str, Any]]] = field(default_factory=list)


@asynccontextmanager
async def standin_proxy(kafka: KafkaSettings, secret: str, script: Script) -> AsyncIterator[StandIn]:
    """Serve on a free port while the block runs. `script` gets the bearer and the messages."""
    async with RecordProducer(kafka, "standin-proxy") as producer:
        state = StandIn("", secret, script)

        async def chat(request: web.Request) -> web.StreamResponse:
            return await _chat(request, state, producer)

        app = web.Application()
        app.router.add_post("/r/{token}/v1/chat/completions", chat)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        state.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield state
        finally:
            await runner.cleanup()


async def _chat(request: web.Request, state: StandIn, producer: RecordProducer) -> web.StreamResponse:
    received_at = now_us()
    try:
        bearer = verify(request.match_info["token"], state.secret)
    except BearerError as error:
        return web.json_response({"error": {"message": str(error), "code": "invalid_api_key"}}, status=401)
    body = await request.json()
    state.requests.append((bearer, body))
    said = state.script(bearer, body["messages"])
    reply = said if isinstance(said, Reply) else await said
    await asyncio.sleep(reply.delay_s)
    await producer.send(COMPLETIONS, _record(bearer, body, reply, received_at))
    if reply.error_code:
        error = {"message": f"refused: {reply.error_code}", "code": reply.error_code, "type": "invalid_request_error"}
        return web.json_response({"error": error}, status=400)
    return await _stream(request, body, reply) if body.get("stream") else web.json_response(_answer(body, reply))


def _record(bearer: Bearer, body: dict[str, Any], reply: Reply, received_at: int) -> Completion:
    failed = bool(reply.error_code)
    return Completion(
        completion_id=completion_id(),
        rollout_id=bearer.rollout_id,
        attempt=bearer.attempt,
        policy_id=bearer.policy_id,
        model=body["model"],
        request_delta=json.dumps(body["messages"]),
        finish_reason=FinishReason.ERROR if failed else FinishReason(_finish(reply)),
        status=CompletionStatus.FAILED if failed else CompletionStatus.DELIVERED,
        error=f"{reply.error_code}: refused" if failed else None,
        timings=CompletionTimings(received_at_us=received_at),
    )


def _finish(reply: Reply) -> str:
    return "tool_calls" if reply.bash is not None else reply.finish


def _answer(body: dict[str, Any], reply: Reply) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": _finish(reply), "message": {"role": "assistant", **_content(reply)}}
    return {**_head(body, "chat.completion"), "choices": [choice], "usage": _USAGE}


async def _stream(request: web.Request, body: dict[str, Any], reply: Reply) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    delta = {"role": "assistant", **_content(reply)}
    for number, call in enumerate(delta.get("tool_calls", [])):
        call["index"] = number
    head = _head(body, "chat.completion.chunk")
    for choice in ({"delta": delta, "finish_reason": None}, {"delta": {}, "finish_reason": _finish(reply)}):
        await _event(response, {**head, "choices": [{"index": 0, **choice}]})
    await _event(response, {**head, "choices": [], "usage": _USAGE})
    await response.write(b"data: [DONE]\n\n")
    return response


async def _event(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _content(reply: Reply) -> dict[str, Any]:
    if reply.bash is None:
        return {"content": reply.text}
    function = {"name": "bash", "arguments": json.dumps({"command": reply.bash})}
    return {"content": reply.text, "tool_calls": [{"id": "call1", "type": "function", "function": function}]}


def _head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1, "model": body["model"]}


_USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
