"""Runs the scheduler in a thread of its own; everything else of the engine happens on the event loop.

What changes the model or the queue is handed over as a function and runs between two steps.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from learner.serving.embedded.scheduler import Delta, Scheduler, Sequence
from learner.serving.errors import RequestRefused, ServingError

T = TypeVar("T")
_Task = Callable[[], None]


class EngineLoop:
    """Steps while there is work and nobody has paused it. `Sequence.owner` is the asyncio.Queue of its deltas."""

    def __init__(self, scheduler: Scheduler, threads: int) -> None:
        self.scheduler = scheduler
        self.paused = False
        self.busy_s = 0.0
        """Seconds spent in steps."""
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done when a step has failed: the engine is of no use any more. Its result is the error."""
        self._stopping = False
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Ends what is under way with `abort` and waits for the thread; a step that runs is finished first."""
        if self._thread.is_alive():
            self._stopping = True
            self.abort(_everyone)
            self._tasks.put(None)
            await asyncio.to_thread(self._thread.join)

    def submit(self, sequence: Sequence) -> None:
        """Queues a request.

        Raises:
            RequestRefused: 503, the engine is stopping or has failed.
        """
        if self._stopping or self.failed.done():
            raise RequestRefused("the engine is stopping", status=503)
        self._tasks.put(lambda: self.scheduler.add(sequence))

    def abort(self, chosen: Callable[[Sequence], bool]) -> None:
        """Ends requests soon; each gets a last delta with `abort`."""
        self._tasks.put(lambda: self._deliver(self.scheduler.abort(chosen)))

    async def between_steps(self, function: Callable[[], T]) -> T:
        """Runs `function` in the engine's thread between two steps.

        Raises:
            ServingError: the engine has stopped.
        """
        if not self._thread.is_alive():
            raise ServingError("the engine has stopped")
        done: Future[T] = Future()

        def task() -> None:
            try:
                done.set_result(function())
            except BaseException as error:
                done.set_exception(error)

        self._tasks.put(task)
        return await asyncio.wrap_future(done)

    async def pause(self, *, clear_cache: bool) -> None:
        """Returns when no step runs; none will until `resume`."""

        def task() -> None:
            self.paused = True
            if clear_cache:
                self.scheduler.drop_caches(running=True)

        await self.between_steps(task)

    async def resume(self) -> None:
        """Goes on."""

        def task() -> None:
            self.paused = False

        await self.between_steps(task)

    def _run(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while self._do_tasks():
                began = time.perf_counter()
                deltas = self.scheduler.step()
                self.busy_s += time.perf_counter() - began
                self._deliver(deltas)
        except BaseException as error:
            self._give_up(error)

    def _do_tasks(self) -> bool:
        """Does what was handed over; waits for more while there is nothing to step. False: stop."""
        while True:
            idle = self.paused or not (self.scheduler.running or self.scheduler.waiting)
            try:
                task = self._tasks.get(block=idle)
            except queue.Empty:
                return True
            if task is None:
                return False
            task()

    def _deliver(self, deltas: list[Delta]) -> None:
        if deltas:
            self._loop.call_soon_threadsafe(_hand_out, deltas)

    def _give_up(self, error: BaseException) -> None:
        lost = [Delta(delta.sequence, finish_reason="error") for delta in self.scheduler.abort(_everyone)]
        self._deliver(lost)
        self._loop.call_soon_threadsafe(self.failed.set_result, error)


def _everyone(_sequence: Sequence) -> bool:
    return True


def _hand_out(deltas: list[Delta]) -> None:
    for delta in deltas:
        delta.sequence.owner.put_nowait(delta)
