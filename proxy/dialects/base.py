"""What a dialect is: everything that the proxy asks of a wire format."""

from typing import Protocol

from proxy.conversation import Answer, ModelRequest, Piece
from proxy.errors import RequestError


class StreamWriter(Protocol):
    """Writes one streamed reply in the dialect's event grammar."""

    def begin(self) -> bytes:
        """What stands before the first piece."""
        ...

    def piece(self, piece: Piece) -> bytes:
        """A stretch of text, or a whole tool call."""
        ...

    def end(self, answer: Answer) -> bytes:
        """All that comes after the last piece, from the finish reason to the very end."""
        ...


class Dialect(Protocol):
    """A provider's wire format."""

    name: str
    keep_alive: bytes
    """What a stream may say at any moment without meaning anything."""

    def parse(self, body: bytes) -> ModelRequest:
        """The request in a body.

        Raises:
            RequestError: not a request of this dialect; unknown fields are never a reason.
        """
        ...

    def writer(self, request: ModelRequest, completion_id: str, created_s: int) -> StreamWriter:
        """A writer for a streamed reply."""
        ...

    def whole(self, request: ModelRequest, answer: Answer) -> bytes:
        """The body of a reply that is not streamed."""
        ...

    def error(self, error: RequestError) -> bytes:
        """The body of an error."""
        ...

    def stream_error(self, error: RequestError) -> bytes:
        """An error in a stream that has begun."""
        ...

    def models(self, names: list[str]) -> bytes:
        """The body of the list of models."""
        ...
