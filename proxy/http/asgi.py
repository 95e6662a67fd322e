"""The little of ASGI that the model routes need: a body with a limit, a reply, and whether the caller still listens."""

import asyncio
from collections.abc import Callable, Sequence

from litestar.types import HTTPScope, Receive, Send

from proxy.errors import Problem, RequestError

Headers = Sequence[tuple[bytes, bytes]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
EVENT_STREAM: Headers = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a reverse proxy must not gather chunks
)
# Whoever gets an error has it from us for good: what may be tried again was tried again already.
NO_RETRY: tuple[bytes, bytes] = (b"x-should-retry", b"false")
_DISCARDED = 4  # a body that is too large is read up to this many times the limit, so that the answer is heard


class Disconnected(Exception):
    """The caller hung up before its request was whole."""


def header(scope: HTTPScope, name: bytes) -> bytes:
    """A request header; empty when it is not there. Names are lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return value
    return b""


async def read_body(scope: HTTPScope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        RequestError: it is larger than the limit.
        Disconnected: the caller is gone.
    """
    parts: list[bytes] = []
    size = 0
    declared = header(scope, b"content-length")
    too_large = declared.isdigit() and int(declared) > limit_bytes
    while True:
        event = await receive()
        if event["type"] != "http.request":
            raise Disconnected
        part = event["body"]
        size += len(part)
        too_large = too_large or size > limit_bytes
        if not too_large:
            parts.append(part)
        if not event["more_body"] or size > _DISCARDED * limit_bytes:
            break
    if too_large:
        raise RequestError(Problem.TOO_LARGE, f"the request body is larger than {limit_bytes} bytes")
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def reply(send: Send, status: int, body: bytes, headers: Headers = (JSON,)) -> None:
    """A whole reply."""
    await send_start(send, status, (*headers, (b"content-length", b"%d" % len(body))))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_start(send: Send, status: int, headers: Headers) -> None:
    """Status and headers; the body follows."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_part(send: Send, body: bytes, *, more: bool = True) -> None:
    """A part of the body."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


def watch(receive: Receive, on_gone: Callable[[], None]) -> asyncio.Task[None]:
    """Calls `on_gone` when the caller hangs up. Cancel the task when the reply is out."""

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_gone()

    return asyncio.create_task(wait())
