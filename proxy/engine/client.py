"""Sampling on the policy's engines, through their restarts: what a harness never gets to see.

A connection error, a 5xx or a cut stream is tried again within a time budget that begins anew with every token. Tokens
that were sampled before a cut are kept; the next request goes on after them. aiohttp, because httpx queues badly.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import aiohttp
from structlog.typing import FilteringBoundLogger
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from proxy.engine.sampled import Sampled
from proxy.engine.wire import (
    ABORT,
    GENERATE,
    Chunk,
    EventStream,
    GenerateRequest,
    SamplingParams,
    abort_body,
    encode_request,
    error_text,
)
from proxy.errors import EngineRefused, EngineTrouble
from schemas import Sampling
from schemas.ids import now_us

OnTokens = Callable[[list[int]], None]

_CONNECT_S = 5.0
_ABORT_S = 5.0
_LONGEST_WAIT_S = 2.0
_RETRIED_STATUS = frozenset({408, 425, 429})  # beside every 5xx
_SEED_STEP = 1_000_003  # a continued completion must not draw the same random numbers again


@dataclass(frozen=True, slots=True)
class Job:
    """One completion to sample."""

    completion_id: str
    rollout_id: str
    policy_id: str
    prompt: list[int]
    sampling: Sampling
    """As applied; `max_tokens` is set."""
    stop_ids: frozenset[int]


def ranked(engines: Sequence[str], rollout_id: str) -> list[str]:
    """The engines in the order in which a rollout prefers them: it stays on one, for its prefix cache.

    Rendezvous hashing (Thaler and Ravishankar, 1998): when an engine comes or goes, only its own rollouts move.
    """
    return sorted(engines, key=lambda url: hashlib.blake2b(f"{rollout_id}\0{url}".encode()).digest(), reverse=True)


class EngineClient:
    """Samples completions on a fixed list of engines."""

    def __init__(
        self,
        engines: Sequence[str],
        log: FilteringBoundLogger,
        *,
        retry_s: float,
        silence_s: float,
        on_retry: Callable[[], None] = lambda: None,
    ) -> None:
        """`retry_s`: budget without a token; `silence_s`: a stream that says nothing for so long is taken for dead."""
        self._engines = [url.rstrip("/") for url in engines]
        self._log = log
        self._retry_s = retry_s
        self._silence_s = silence_s
        self._on_retry = on_retry
        self._session: aiohttp.ClientSession | None = None
        self._versions: dict[str, int] = {}
        self._aborts: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=self._silence_s)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
            timeout=timeout,
            read_bufsize=2**20,
            headers={"Content-Type": "application/json"},
        )
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await asyncio.gather(*self._aborts, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def sample(self, job: Job, sampled: Sampled, on_tokens: OnTokens) -> None:
        """Samples a completion into `sampled`; `on_tokens` is called with each new stretch of ids.

        Cancelling it aborts the request on the engine; the tokens so far stay in `sampled`.

        Raises:
            EngineRefused: the engine says that the request is wrong.
            EngineTrouble: the budget is used up.
        """
        urls = ranked(self._engines, job.rollout_id)
        progress = _Progress(sampled)
        try:
            return await self._once(urls[0], job, sampled, on_tokens, 1)
        except EngineTrouble as trouble:  # tenacity costs more than a small call: only for those that need it
            self._tell(job, 1, trouble)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(EngineTrouble),
            wait=wait_random_exponential(multiplier=0.1, max=_LONGEST_WAIT_S),
            stop=lambda _state: progress.stalled_s() > self._retry_s,
            before_sleep=lambda state: self._tell_state(job, state),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                number = attempt.retry_state.attempt_number + 1
                await self._once(urls[(number - 1) % len(urls)], job, sampled, on_tokens, number)

    def _tell_state(self, job: Job, state: RetryCallState) -> None:
        self._tell(job, state.attempt_number + 1, state.outcome.exception() if state.outcome else None)

    def _tell(self, job: Job, number: int, error: BaseException | None) -> None:
        self._on_retry()
        self._log.warning(
            "engine trouble, trying again",
            rollout_id=job.rollout_id,
            completion_id=job.completion_id,
            number=number,
            error=str(error),
        )

    async def _once(self, url: str, job: Job, sampled: Sampled, on_tokens: OnTokens, number: int) -> None:
        """One request; returns when the completion is whole."""
        left = job.sampling.max_tokens - len(sampled.ids)
        if sampled.ids and (sampled.ids[-1] in job.stop_ids or left <= 0):
            sampled.finish = "stop" if sampled.ids[-1] in job.stop_ids else "length"
            return  # cut between the last token and the word that it was the last
        request_id = job.completion_id if number == 1 else f"{job.completion_id}-{number}"
        sampled.cuts += bool(sampled.ids)
        sampled.engine = url
        sampled.dispatched_at_us = sampled.dispatched_at_us or now_us()
        sampled.begin_segment()
        try:
            await self._stream(url, _request(job, sampled, request_id, left), sampled, on_tokens)
        except asyncio.CancelledError:
            self._abort(url, request_id)
            raise
        except aiohttp.ClientConnectorError as error:
            raise EngineTrouble(f"{url}: {error.os_error.strerror or error.os_error}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._abort(url, request_id)
            raise EngineTrouble(f"{url}: {str(error) or type(error).__name__}") from error
        finally:
            told = sampled.end_segment(job.policy_id, self._versions.get(url))
            if told is not None:
                self._versions[url] = told

    async def _stream(self, url: str, request: GenerateRequest, sampled: Sampled, on_tokens: OnTokens) -> None:
        assert self._session is not None, "used before it was entered"
        events = EventStream()
        async with self._session.post(url + GENERATE, data=encode_request(request)) as response:
            if response.status != 200:
                _raise_for(url, response.status, await response.read())
            async for data in response.content.iter_any():
                for chunk in events.feed(data):
                    self._take(url, chunk, sampled, on_tokens)
        if sampled.finish is None:
            raise EngineTrouble(f"{url}: the stream was cut after {len(sampled.ids)} tokens")

    def _take(self, url: str, chunk: Chunk, sampled: Sampled, on_tokens: OnTokens) -> None:
        if chunk.error is not None:
            raise EngineTrouble(f"{url}: {chunk.error.message}")
        if chunk.usage and chunk.usage.prompt_tokens_details:
            sampled.cached_tokens = chunk.usage.prompt_tokens_details.cached_tokens or 0
        for choice in chunk.choices:
            ids = sampled.add(choice)
            if ids:
                sampled.last_token_at_us = now_us()
                sampled.first_token_at_us = sampled.first_token_at_us or sampled.last_token_at_us
                on_tokens(ids)
        if sampled.finish in ("abort", "error"):  # nobody here asked for it
            finish, sampled.finish = sampled.finish, None
            raise EngineTrouble(f"{url}: the engine ended the request with {finish!r}")

    def _abort(self, url: str, request_id: str) -> None:
        """Tell the engine that nobody waits any more; beside everything else, and whether it listens or not."""
        task = asyncio.create_task(self._send_abort(url, request_id))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, url: str, request_id: str) -> None:
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=_ABORT_S)
        try:
            async with self._session.post(url + ABORT, data=abort_body(request_id), timeout=timeout):
                pass
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._log.debug("abort not delivered", engine=url, request_id=request_id, error=str(error))


class _Progress:
    """How long no token has come."""

    def __init__(self, sampled: Sampled) -> None:
        self._sampled = sampled
        self._count = len(sampled.ids)
        self._since_s = time.monotonic()

    def stalled_s(self) -> float:
        if len(self._sampled.ids) > self._count:
            self._count, self._since_s = len(self._sampled.ids), time.monotonic()
        return time.monotonic() - self._since_s


def _request(job: Job, sampled: Sampled, request_id: str, left: int) -> GenerateRequest:
    seed = job.sampling.seed
    return GenerateRequest(
        model=job.policy_id,
        request_id=request_id,
        token_ids=job.prompt + sampled.ids,
        sampling_params=SamplingParams(
            max_tokens=left,
            temperature=job.sampling.temperature,
            top_p=job.sampling.top_p,
            top_k=job.sampling.top_k,
            stop_token_ids=sorted(job.stop_ids),
            logprobs=1,
            seed=None if seed is None else seed + _SEED_STEP * len(sampled.ids),
        ),
    )


def _raise_for(url: str, status: int, body: bytes) -> None:
    message = f"{url} answers {status}: {error_text(body)}"
    if status >= 500 or status in _RETRIED_STATUS:
        raise EngineTrouble(message)
    raise EngineRefused(message, status=status)
