"""Takes what a process writes, up to a limit, into a file."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_CHUNK = 64 * 1024
TAIL_BYTES = 64 * 1024
"""How much of an output is handed on; the file has all of it, up to the limit."""


class BoundedOutput:
    """One pipe, read on the event loop; the process gets `descriptor`, which the caller closes once it is passed on."""

    def __init__(self, path: Path, limit_bytes: int, on_flood: Callable[[], None]) -> None:
        """`on_flood` is called once, when more than `limit_bytes` were written; the rest is dropped."""
        self._path = path
        self._left = limit_bytes
        self._on_flood = on_flood
        self._reader, self.descriptor = os.pipe()
        os.set_blocking(self._reader, False)
        self._file = path.open("wb", buffering=0)
        self._open = True
        asyncio.get_running_loop().add_reader(self._reader, self._read)

    def close(self) -> None:
        """Read what is left, and stop; once is enough."""
        while self._open and self._read():
            pass
        self._stop()

    def tail(self) -> bytes:
        """The last part of what was written."""
        size = self._path.stat().st_size
        with self._path.open("rb") as file:
            file.seek(max(0, size - TAIL_BYTES))
            return file.read()

    def _read(self) -> bool:
        """Take one chunk; whether there may be more."""
        try:
            chunk = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return False
        if chunk and self._left > 0:
            with suppress(OSError):  # a full disk costs the log, not the rollout
                self._file.write(chunk[: self._left])
        flooded = self._left >= 0 > self._left - len(chunk)
        self._left -= len(chunk)
        if flooded:
            self._on_flood()
        if not chunk or flooded:
            self._stop()
        return self._open

    def _stop(self) -> None:
        if self._open:
            self._open = False
            asyncio.get_running_loop().remove_reader(self._reader)
            os.close(self._reader)
            self._file.close()
