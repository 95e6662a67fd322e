"""Work that ends early when the user stops it, or when the stack under it cannot go on."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from deploy.errors import DeployError
from deploy.local.stack import Stack

T = TypeVar("T")


class Interrupted(DeployError):
    """The user, or a supervisor, asked for an end; the number of the signal is the reason."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.exit_status = 128 + number


@contextmanager
def stop_signals(on_second: Callable[[], None]) -> Iterator[asyncio.Future[int]]:
    """SIGINT and SIGTERM complete the future with their number; a second one calls `on_second`."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[int] = loop.create_future()

    def on_signal(number: int) -> None:
        if stopping.done():
            on_second()
        else:
            stopping.set_result(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stopping
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def guarded(stack: Stack, stopping: asyncio.Future[int], work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when it can no longer matter.

    Raises:
        Interrupted: a signal came first.
        StackFailed: the stack failed first.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, stopping, stack.failed}, return_when=asyncio.FIRST_COMPLETED)
        if stopping.done():
            raise Interrupted(stopping.result())
        if stack.failed.done() and not task.done():
            raise stack.failed.result()
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def end_hard(stack: Stack) -> Callable[[], None]:
    """For a second signal: kill everything that the stack started, then this process."""

    def end() -> None:
        stack.kill()
        os._exit(128 + signal.SIGINT)

    return end
