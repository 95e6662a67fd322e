"""Serves the application with uvicorn inside a loop that is already running."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator

import uvicorn
from litestar import Litestar

from ingest.service.errors import PortInUse

_BACKLOG = 2048
_KEEP_ALIVE_S = 600  # between two calls of a harness; closing earlier races with its next request
_GRACE_S = 25


class Server(uvicorn.Server):
    """uvicorn, which leaves signals to the service that it runs in."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()
        """Set when connections are accepted."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn."""
        await super().startup(sockets)
        self.serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: `ingest.service.runner` has them."""
        yield


def listen(service: str, host: str, port: int) -> socket.socket:
    """A listening socket, so that a taken port is one clear line.

    Raises:
        PortInUse: another process listens there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(service, host, port) from error
        raise
    listener.listen(_BACKLOG)
    return listener


def server(app: Litestar) -> Server:
    """A server for the application; set its `should_exit` to end it."""
    config = uvicorn.Config(
        app,
        loop="none",
        lifespan="off",
        ws="none",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_BACKLOG,
    )
    return Server(config)
