"""Says something now and then on a stream that has nothing to say, so that nobody takes it for dead."""

import asyncio
from collections.abc import Awaitable, Callable

Say = Callable[[], Awaitable[None]]


class KeepAlive:
    """Calls `say` whenever `touch` was not called for `interval_s`. A timer, not a task: most replies never need it."""

    def __init__(self, interval_s: float, say: Say) -> None:
        self._interval_s = interval_s
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._touched_s = self._loop.time()
        self._saying: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(interval_s, self._due)

    def touch(self) -> None:
        """Something was sent."""
        self._touched_s = self._loop.time()

    async def stop(self) -> None:
        """Say no more. Returns when nothing is being said."""
        self._timer.cancel()
        if self._saying is not None:
            await asyncio.wait([self._saying])

    def _due(self) -> None:
        silent_s = self._loop.time() - self._touched_s
        if silent_s >= self._interval_s - 1e-3:
            if self._saying is None or self._saying.done():
                self._saying = asyncio.ensure_future(self._say())
            self.touch()
            silent_s = 0.0
        self._timer = self._loop.call_later(self._interval_s - silent_s, self._due)
