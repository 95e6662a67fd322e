"""An engine without a model: vLLM's token API, with replies that a test wrote. For tests and benchmarks only.

`python -m tests.support.scripted_engine --port 8701 --model FOLDER --tokens 64` serves the same reply for ever.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import uvloop
from aiohttp import web
from tokenizers import Tokenizer

Trouble = Literal["", "cut", "error", "abort", "500", "400"]


@dataclass
class Reply:
    """What the engine answers to one request."""

    ids: list[int]
    """Tokens to sample; the request's `max_tokens` may cut them."""
    chunk_tokens: int = 1
    first_delay_s: float = 0.0
    delay_s: float = 0.0
    """Before every chunk."""
    versions: dict[int, str] = field(default_factory=lambda: {0: "policy@0"})
    """From which token on the weights carry which label."""
    versions_in_every_chunk: bool = False
    trouble: Trouble = ""
    after: int = 0
    """Tokens that are sent before the trouble."""
    logprobs_lost: int = 0
    """So many logprobs are missing in the first chunk."""
    message: str = "something is wrong"


@dataclass
class Request:
    """A request as it came."""

    request_id: str
    model: str
    token_ids: list[int]
    sampling: dict[str, Any]


Script = Callable[[Request], Reply]


def logprob_of(token_id: int) -> float:
    """The log-probability that this engine gives a token: exact in float32, so that tests can compare."""
    return -(token_id % 7 + 1) / 8


class ScriptedEngine:
    """Serves a script on 127.0.0.1. `stop` and `start` again on the same port make a restart."""

    def __init__(self, script: Script, port: int = 0) -> None:
        self.script = script
        self.port = port
        self.requests: list[Request] = []
        self.aborted: list[str] = []
        """Request ids of abort calls, as they were sent."""
        self.hung_up: list[str] = []
        """Requests whose client went away before the end."""
        self._runner: web.AppRunner | None = None
        self._streams: set[asyncio.Transport] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> "ScriptedEngine":
        app = web.Application(client_max_size=2**30)
        app.add_routes(
            [
                web.get("/health", _health),
                web.post("/inference/v1/generate", self._generate),
                web.post("/inference/v1/abort_requests", self._abort),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        """As if it were killed: streams break off."""
        for stream in self._streams:
            stream.abort()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> "ScriptedEngine":
        return await self.start()

    async def __aexit__(self, *_exception: object) -> None:
        await self.stop()

    async def _abort(self, request: web.Request) -> web.Response:
        self.aborted += (await request.json())["request_ids"]
        return web.Response()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        asked = Request(body["request_id"], body["model"], body["token_ids"], body["sampling_params"])
        assert body["stream"] is True
        self.requests.append(asked)
        reply = self.script(asked)
        if reply.trouble in ("500", "400"):
            status = int(reply.trouble)
            error = {"message": reply.message, "type": "BadRequestError", "param": None, "code": status}
            return web.json_response({"error": error}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        transport = request.transport
        assert transport is not None
        self._streams.add(transport)
        try:
            await self._stream(request, response, asked, reply)
        except (ConnectionResetError, asyncio.CancelledError):
            self.hung_up.append(asked.request_id)
            raise
        finally:
            self._streams.discard(transport)
        return response

    async def _stream(self, request: web.Request, response: web.StreamResponse, asked: Request, reply: Reply) -> None:
        limit = asked.sampling["max_tokens"]
        ids, finish = (reply.ids, "stop") if len(reply.ids) <= limit else (reply.ids[:limit], "length")
        await asyncio.sleep(reply.first_delay_s)
        end = len(ids) if not reply.trouble else min(reply.after, len(ids))
        for start in range(0, end, reply.chunk_tokens):
            if reply.delay_s:
                await asyncio.sleep(reply.delay_s)
            stop = min(start + reply.chunk_tokens, end)
            done = stop == len(ids)
            await response.write(_chunk(asked, reply, ids, start, stop, finish if done else None))
        if reply.trouble == "cut":
            assert request.transport is not None
            request.transport.abort()
            return
        if reply.trouble == "error":
            error = {"message": reply.message, "type": "InternalServerError", "param": None, "code": 500}
            await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        elif reply.trouble == "abort":
            await response.write(_chunk(asked, reply, ids, end, end, "abort"))
        else:
            usage = {"prompt_tokens": len(asked.token_ids), "completion_tokens": len(ids)}
            usage["total_tokens"] = sum(usage.values())
            last = {"request_id": _server_id(asked), "choices": [], "usage": usage}
            await response.write(b"data: " + json.dumps(last).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")


async def _health(_request: web.Request) -> web.Response:
    return web.Response()


def _server_id(asked: Request) -> str:
    return f"generate-tokens-{asked.request_id}"


def _chunk(asked: Request, reply: Reply, ids: list[int], start: int, stop: int, finish: str | None) -> bytes:
    entries = [{"token_id": i, "logprob": logprob_of(i), "rank": 1, "top_logprobs": []} for i in ids[start:stop]]
    if start == 0 and reply.logprobs_lost:
        entries = entries[reply.logprobs_lost :]
    versions = _spans(reply.versions, stop) if finish or reply.versions_in_every_chunk else None
    choice = {
        "index": 0,
        "logprobs": {"content": entries},
        "finish_reason": finish,
        "stop_reason": None,
        "token_ids": ids[start:stop],
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": versions,
    }
    return (
        b"data: " + json.dumps({"request_id": _server_id(asked), "choices": [choice], "usage": None}).encode() + b"\n\n"
    )


def _spans(versions: dict[int, str], end: int) -> list[dict[str, Any]]:
    starts = [start for start in sorted(versions) if start < end] or [0]
    return [
        {"version": versions[start], "start": start, "end": stop}
        for start, stop in zip(starts, [*starts[1:], end], strict=True)
    ]


def texts(folder: Path, *replies: str, **options: Any) -> Script:
    """A script that answers with these texts, one a request, each closed with `<|im_end|>`; the last one for ever."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    stop = tokenizer.token_to_id("<|im_end|>")
    waiting = [[*tokenizer.encode(text, add_special_tokens=False).ids, stop] for text in replies]

    def script(_request: Request) -> Reply:
        ids = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        return Reply(ids, **options)

    return script


class FrozenEngine:
    """Answers every request with the same bytes, event by event, and reads none: for benchmarks."""

    def __init__(self, reply: Reply) -> None:
        asked = Request("frozen", "policy", [], {})
        ends = [*range(reply.chunk_tokens, len(reply.ids), reply.chunk_tokens), len(reply.ids)]
        starts = [0, *ends[:-1]]
        self._events = [
            _chunk(asked, reply, reply.ids, start, end, "stop" if end == len(reply.ids) else None)
            for start, end in zip(starts, ends, strict=True)
        ]
        self._events[-1] += b"data: [DONE]\n\n"

    async def serve(self, port: int) -> None:
        app = web.Application(client_max_size=2**30)
        app.add_routes(
            [web.post("/inference/v1/generate", self._generate), web.post("/inference/v1/abort_requests", _health)]
        )
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in self._events:
            await response.write(event)
        return response


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=1)
    given = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(given.model / "tokenizer.json"))
    ids = tokenizer.encode("The quick brown fox jumps over the lazy dog. " * given.tokens).ids[: given.tokens - 1]
    reply = Reply([*ids, tokenizer.token_to_id("<|im_end|>")], chunk_tokens=given.chunk)
    uvloop.run(FrozenEngine(reply).serve(given.port))


if __name__ == "__main__":
    _main()
