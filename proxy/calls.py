"""Calls in, replies out: which are repeats, which are sampled, and who waits for what."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ingest.bearer import Bearer
from ingest.errors import DeliveryError
from proxy.broadcast import Broadcast, Follower, finished
from proxy.conversation import Answer, ModelRequest
from proxy.errors import Problem, RequestError
from proxy.exchange import Exchange, Parts
from proxy.recorder import Call, replay_record
from proxy.sessions.attempts import Attempt
from schemas.ids import completion_id


@dataclass(frozen=True)
class Ticket:
    """A call that was taken on: its reply, and what must happen before the reply's last byte."""

    call: Call
    broadcast: Broadcast
    follower: Follower
    before_end: Callable[[Answer], Awaitable[None]]
    """Puts a repeat on record; nothing to do for a sampled call, whose answer is on record already.

    Raises RequestError when the log does not take it.
    """
    leave: Callable[[], None]
    """The caller has its reply or is gone; the last one to leave an unfinished exchange ends it."""
    timings: Callable[[], dict[str, float]]
    repeat: str = ""
    """`joined` or `replayed`; empty for a call that is sampled."""


class Calls:
    """All calls of this process."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._running: set[asyncio.Task[None]] = set()
        self._exchanges: set[Exchange] = set()
        self._stopping = False

    def open(
        self, bearer: Bearer, dialect: str, request: ModelRequest, digest: str, *, received_at_us: int, is_retry: bool
    ) -> Ticket:
        """Take a call on.

        A body that is being answered already is joined. One that says itself that it is a retry, and was answered, is
        answered the same again. Anything else is sampled: an equal body alone may well be a deliberate second sample.

        Raises:
            RequestError: the rollout has ended, or the proxy is stopping.
        """
        if self._stopping:
            raise RequestError(Problem.STOPPING, "this proxy is stopping")
        attempt = self._parts.attempts.open(bearer)
        call = Call(
            bearer=bearer,
            dialect=dialect,
            request=request,
            digest=digest,
            completion_id=completion_id(),
            call_index=attempt.next_index(),
            received_at_us=received_at_us,
            retry_of=attempt.failures.get(digest),
        )
        if (running := attempt.in_flight.get(digest)) is not None:
            return self._repeat(call, running.broadcast, "joined", lambda: self._leave_exchange(attempt, running))
        if is_retry and (answer := attempt.answers.get(digest)) is not None:
            return self._repeat(call, finished(answer), "replayed", lambda: None)
        return self._sample(attempt, call)

    async def close(self, reason: str) -> None:
        """End what is in flight, on record."""
        self._stopping = True
        for exchange in list(self._exchanges):
            exchange.give_up(reason)
        await asyncio.gather(*self._running, return_exceptions=True)

    async def idle(self) -> None:
        """Returns when nothing is in flight."""
        while self._running:
            await asyncio.wait(self._running)

    def __len__(self) -> int:
        return len(self._exchanges)

    def _sample(self, attempt: Attempt[Exchange], call: Call) -> Ticket:
        exchange = Exchange(self._parts, attempt, call)
        attempt.in_flight[call.digest] = exchange
        self._exchanges.add(exchange)
        self._parts.metrics.in_flight.inc()

        def done(_exchange: Exchange) -> None:
            attempt.forget(call.digest, exchange)
            self._exchanges.discard(exchange)
            self._parts.metrics.in_flight.dec()

        task = exchange.start(done)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        follower = exchange.broadcast.follow(every_piece=call.request.stream)

        def leave() -> None:
            exchange.broadcast.leave(follower)
            self._leave_exchange(attempt, exchange)

        return Ticket(call, exchange.broadcast, follower, _nothing, leave, exchange.timings)

    def _repeat(self, call: Call, broadcast: Broadcast, kind: str, after: Callable[[], None]) -> Ticket:
        self._parts.metrics.repeats.labels(kind).inc()
        follower = broadcast.follow(every_piece=call.request.stream)

        async def record(answer: Answer) -> None:
            try:
                await self._parts.recorder.record(replay_record(call, answer))
            except DeliveryError as error:
                self._parts.log.error("repeat not recorded", completion_id=call.completion_id, error=str(error))
                raise RequestError(Problem.NOT_RECORDED, "the completion could not be recorded") from error

        def leave() -> None:
            broadcast.leave(follower)
            after()

        return Ticket(call, broadcast, follower, record, leave, dict, kind)

    def _leave_exchange(self, attempt: Attempt[Exchange], exchange: Exchange) -> None:
        if exchange.broadcast.done or exchange.broadcast.followed or not exchange.give_up("the harness hung up"):
            return
        # A retry that comes from now on is sampled: it must not join a reply that will never be.
        attempt.forget(exchange.call.digest, exchange)
        attempt.remember_failure(exchange.call.digest, exchange.call.completion_id)


async def _nothing(_answer: Answer) -> None:
    """A sampled call is on record before its answer is known."""
