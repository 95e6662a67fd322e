"""The model routes: who is it, what is asked, and the reply. One ASGI callable, for it is the hot path.

A rollout's token arrives as API key (`Authorization: Bearer`, `x-api-key`, `x-goog-api-key`) or as the path prefix
`/r/<token>`; every harness accepts one of the two.
"""

import hashlib
import time
from dataclasses import dataclass

from litestar.types import HTTPScope, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from ingest.bearer import Bearer, BearerError
from proxy.calls import Calls, Ticket
from proxy.dialects import DIALECTS, Dialect
from proxy.errors import Problem, RequestError
from proxy.http.asgi import Disconnected, header, read_body, reply, watch
from proxy.http.bearers import Bearers
from proxy.http.replies import refuse, streamed_reply, whole_reply
from proxy.metrics import ProxyMetrics
from schemas.ids import now_us

_PREFIX = "/r/"
_MODELS = "/v1/models"
_HUNG_UP = 0


@dataclass(frozen=True)
class _Asked:
    """Where a request goes, and on whose behalf."""

    path: str
    token: str
    dialect: Dialect
    """For a path that no dialect owns: the one in whose shape errors are told."""


class Gateway:
    """Answers everything but health and metrics."""

    def __init__(
        self,
        calls: Calls,
        bearers: Bearers,
        metrics: ProxyMetrics,
        log: FilteringBoundLogger,
        *,
        body_limit_bytes: int,
        keep_alive_s: float,
    ) -> None:
        self._calls = calls
        self._bearers = bearers
        self._metrics = metrics
        self._log = log
        self._body_limit_bytes = body_limit_bytes
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            return
        asked = _asked(scope)
        try:
            if asked.path in DIALECTS:
                await self._model_call(asked, scope, receive, send)
            else:
                await self._other(asked, scope, send)
        except RequestError as error:
            self._metrics.requests.labels(asked.dialect.name, error.problem.code).inc()
            self._log.info("refused", path=asked.path, status=error.problem.status, error=str(error))
            await refuse(send, asked.dialect, error)
        except Disconnected:
            self._metrics.requests.labels(asked.dialect.name, "hung_up").inc()

    async def _model_call(self, asked: _Asked, scope: HTTPScope, receive: Receive, send: Send) -> None:
        started, received_at_us = time.perf_counter(), now_us()
        if scope["method"] != "POST":
            raise RequestError(Problem.WRONG_METHOD, f"{scope['method']} is not for {asked.path}: send POST")
        bearer = self._bearer(asked)
        body = await read_body(scope, receive, self._body_limit_bytes)
        request = asked.dialect.parse(body)
        ticket = self._calls.open(
            bearer,
            asked.dialect.name,
            request,
            hashlib.sha256(body).hexdigest(),
            received_at_us=received_at_us,
            is_retry=header(scope, b"x-stainless-retry-count") not in (b"", b"0"),
        )
        status = _HUNG_UP
        watcher = watch(receive, ticket.follower.hang_up)
        try:
            if request.stream:
                status = await streamed_reply(send, asked.dialect, ticket, self._keep_alive_s)
            else:
                status = await whole_reply(send, asked.dialect, ticket)
        finally:
            watcher.cancel()
            ticket.leave()
            self._account(asked, ticket, status, time.perf_counter() - started, len(body))

    async def _other(self, asked: _Asked, scope: HTTPScope, send: Send) -> None:
        method = scope["method"]
        if method in ("GET", "HEAD") and asked.path == _MODELS:
            await reply(send, 200, asked.dialect.models([self._bearer(asked).policy_id]))
        elif method in ("GET", "HEAD") and asked.path in ("", "/", "/v1", "/v1/"):
            await reply(send, 200, b"{}")  # harnesses look whether anybody is there
        else:
            raise RequestError(Problem.UNKNOWN_ROUTE, f"unknown request URL: {method} {asked.path}")

    def _bearer(self, asked: _Asked) -> Bearer:
        if not asked.token:
            raise RequestError(
                Problem.UNAUTHENTICATED, "no rollout token: send it as API key, or as the path prefix /r/<token>"
            )
        try:
            return self._bearers.verify(asked.token)
        except BearerError as error:
            raise RequestError(Problem.UNAUTHENTICATED, str(error)) from error

    def _account(self, asked: _Asked, ticket: Ticket, status: int, seconds: float, body_bytes: int) -> None:
        """One line of log and the counters of a call."""
        call, answer, failure = ticket.call, ticket.broadcast.answer, ticket.broadcast.failure
        outcome = "hung_up" if status == _HUNG_UP else "ok" if failure is None else failure.problem.code
        self._metrics.requests.labels(asked.dialect.name, outcome).inc()
        self._metrics.total_s.observe(seconds)
        self._log.info(
            "call",
            rollout_id=call.bearer.rollout_id,
            attempt=call.bearer.attempt,
            call_index=call.call_index,
            completion_id=call.completion_id,
            outcome=outcome,
            status=status,
            streamed=call.request.stream,
            repeat=ticket.repeat,
            body_bytes=body_bytes,
            prompt_tokens=answer.usage.prompt_tokens if answer else None,
            completion_tokens=answer.usage.completion_tokens if answer else None,
            total_ms=round(seconds * 1e3, 3),
            **ticket.timings(),
        )


def _asked(scope: HTTPScope) -> _Asked:
    path = scope["raw_path"].decode("latin-1").partition("?")[0]
    token = ""
    if path.startswith(_PREFIX):
        token, slash, rest = path[len(_PREFIX) :].partition("/")
        path = slash + rest
    else:
        token = _api_key(scope)
    return _Asked(path, token, DIALECTS.get(path) or next(iter(DIALECTS.values())))


def _api_key(scope: HTTPScope) -> str:
    authorization = header(scope, b"authorization")
    scheme, _, credentials = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return credentials.strip().decode("latin-1")
    return (header(scope, b"x-api-key") or header(scope, b"x-goog-api-key")).decode("latin-1")
