"""A ticket's reply over ASGI: streamed piece by piece, or whole. Both end after the call is on record."""

from litestar.types import Send

from proxy.calls import Ticket
from proxy.conversation import Answer
from proxy.dialects.base import Dialect, StreamWriter
from proxy.errors import RequestError
from proxy.http.asgi import EVENT_STREAM, JSON, NO_RETRY, reply, send_part, send_start
from proxy.http.keepalive import KeepAlive


async def refuse(send: Send, dialect: Dialect, error: RequestError) -> int:
    """An error as the whole reply. Returns its status."""
    await reply(send, error.problem.status, dialect.error(error), (JSON, NO_RETRY))
    return error.problem.status


async def whole_reply(send: Send, dialect: Dialect, ticket: Ticket) -> int:
    """Waits for the answer and sends it. Returns the status; 0 when the caller was gone."""
    while await ticket.follower.pieces() is not None:
        pass
    if ticket.follower.gone:
        return 0
    answer = ticket.broadcast.answer
    if answer is None:
        return await refuse(send, dialect, _failure(ticket))
    try:
        await ticket.before_end(answer)
    except RequestError as error:
        return await refuse(send, dialect, error)
    await reply(send, 200, dialect.whole(ticket.call.request, answer))
    return 200


async def streamed_reply(send: Send, dialect: Dialect, ticket: Ticket, keep_alive_s: float) -> int:
    """Sends pieces as they come. Returns the status; 0 when the caller was gone."""
    stream = _Stream(send, dialect, ticket)
    keep_alive = KeepAlive(keep_alive_s, stream.keep_alive)
    try:
        while (pieces := await ticket.follower.pieces()) is not None:
            await stream.say(b"".join(map(stream.writer.piece, pieces)))
            keep_alive.touch()
        if ticket.follower.gone:
            return 0
        try:
            answer = await _recorded_answer(ticket)
        except RequestError as error:
            await keep_alive.stop()
            return await stream.fail(error)
        await keep_alive.stop()
        await stream.end(answer)
        return 200
    finally:
        await keep_alive.stop()


async def _recorded_answer(ticket: Ticket) -> Answer:
    if ticket.broadcast.answer is None:
        raise _failure(ticket)
    await ticket.before_end(ticket.broadcast.answer)
    return ticket.broadcast.answer


def _failure(ticket: Ticket) -> RequestError:
    assert ticket.broadcast.failure is not None, "neither answer nor failure"
    return ticket.broadcast.failure


class _Stream:
    """The response: begun with the first thing said, so that an early failure still has its own status."""

    def __init__(self, send: Send, dialect: Dialect, ticket: Ticket) -> None:
        self._send = send
        self._dialect = dialect
        # A repeat is told under the name of the call that it repeats.
        told = ticket.broadcast
        self.writer: StreamWriter = dialect.writer(ticket.call.request, told.completion_id, told.created_s)
        self._begun = False

    async def say(self, data: bytes) -> None:
        await send_part(self._send, await self._begin() + data)

    async def keep_alive(self) -> None:
        await self.say(self._dialect.keep_alive)

    async def end(self, answer: Answer) -> None:
        await send_part(self._send, await self._begin() + self.writer.end(answer), more=False)

    async def fail(self, error: RequestError) -> int:
        if not self._begun:
            return await refuse(self._send, self._dialect, error)
        await send_part(self._send, self._dialect.stream_error(error), more=False)
        return error.problem.status

    async def _begin(self) -> bytes:
        """Status and headers, once; returns what stands before the first piece, once."""
        if self._begun:
            return b""
        self._begun = True
        await send_start(self._send, 200, EVENT_STREAM)
        return self.writer.begin()
