"""A reply in the making, and those who wait for it: one completion can be told to several callers."""

import asyncio

from proxy.conversation import Answer, Piece
from proxy.errors import RequestError


class Follower:
    """One caller's view of a reply."""

    def __init__(self, broadcast: "Broadcast", *, every_piece: bool) -> None:
        self._broadcast = broadcast
        self._every_piece = every_piece
        self._seen = 0
        self._wake: asyncio.Future[None] | None = None
        self.gone = False
        """The caller has hung up."""

    async def pieces(self) -> list[Piece] | None:
        """What is new, waiting for it; None when no more pieces will come, or the caller is gone."""
        while not self.gone:
            new = self._broadcast.pieces[self._seen :]
            if new and self._every_piece:
                self._seen += len(new)
                return new
            if self._broadcast.done:
                return None
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return None

    def wake(self) -> None:
        """Look again."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def hang_up(self) -> None:
        """The caller is gone."""
        self.gone = True
        self.wake()

    def piece_added(self) -> None:
        """Look again, if pieces are of interest."""
        if self._every_piece:
            self.wake()


class Broadcast:
    """A reply: its pieces so far, and in the end an answer or a failure."""

    def __init__(self, completion_id: str, created_s: int) -> None:
        self.completion_id = completion_id
        """The name under which all callers are told it."""
        self.created_s = created_s
        self.pieces: list[Piece] = []
        self.answer: Answer | None = None
        self.failure: RequestError | None = None
        self._followers: set[Follower] = set()

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self.answer is not None or self.failure is not None

    @property
    def followed(self) -> bool:
        """Whether anybody waits."""
        return bool(self._followers)

    def follow(self, *, every_piece: bool) -> Follower:
        """A new caller; it sees the reply from its beginning."""
        follower = Follower(self, every_piece=every_piece)
        self._followers.add(follower)
        return follower

    def leave(self, follower: Follower) -> None:
        """A caller has its reply, or has gone."""
        self._followers.discard(follower)

    def add(self, pieces: list[Piece]) -> None:
        """More of the reply is certain."""
        if pieces:
            self.pieces += pieces
            for follower in self._followers:
                follower.piece_added()

    def finish(self, answer: Answer | None = None, failure: RequestError | None = None) -> None:
        """The reply is whole, or will never be."""
        self.answer, self.failure = answer, failure
        for follower in self._followers:
            follower.wake()


def finished(answer: Answer) -> Broadcast:
    """A reply that was given before."""
    broadcast = Broadcast(answer.completion_id, answer.created_s)
    broadcast.pieces = answer.pieces
    broadcast.answer = answer
    return broadcast
