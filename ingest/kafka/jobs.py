"""A thread that does blocking jobs for an event loop, one at a time."""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _Job:
    work: Callable[[], Any]
    future: "asyncio.Future[Any]"
    alone: bool


class JobThread:
    """Runs jobs in the order of their submission and answers with futures of the loop that started it.

    Args:
        name: Of the thread, for stack dumps.
        on_idle: Called on the thread each `idle_s` seconds without a job. Must not raise.
        idle_s: See `on_idle`.
    """

    def __init__(self, name: str, *, on_idle: Callable[[], None] | None = None, idle_s: float = 0.5) -> None:
        self._on_idle = on_idle
        self._idle_s = idle_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._deferred: deque[_Job] = deque()
        self._closed: Exception | None = None
        self._lock = threading.Lock()  # no job may slip in behind the last look at the queue
        # A daemon: a call of the client library that never returns must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread, for the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def submit(self, work: Callable[[], T], *, alone: bool = False) -> "asyncio.Future[T]":
        """Queues a job; called on the loop. One that must be `alone` is never done in the middle of another."""
        future: asyncio.Future[T] = self._loop.create_future()
        with self._lock:
            if self._closed is not None:
                future.set_exception(self._closed)
            else:
                self._jobs.put(_Job(work, future, alone))
        return future

    def stop(self, reason: Exception) -> None:
        """Ends the thread after the job at hand; what is queued, and whatever comes later, fails with `reason`."""
        with self._lock:
            self._closed = self._closed or reason
            self._jobs.put(None)

    def nudge(self) -> None:
        """Ends a `serve` that waits."""
        self._jobs.put(None)

    def serve(self, timeout_s: float) -> bool:
        """On the thread, in the middle of a job: does the next other one. Returns whether others wait for its end."""
        try:
            job = self._jobs.get(timeout=timeout_s) if timeout_s else self._jobs.get_nowait()
        except queue.Empty:
            job = None
        if job is not None and job.alone:
            self._deferred.append(job)
        elif job is not None:
            self._do(job)
        return bool(self._deferred) or self._closed is not None

    def _run(self) -> None:
        while self._closed is None:
            try:
                job = self._deferred.popleft() if self._deferred else self._jobs.get(timeout=self._idle_s)
            except queue.Empty:
                if self._on_idle:
                    self._on_idle()
                continue
            if job is not None:
                self._do(job)
        self._refuse_the_rest(self._closed)

    def _refuse_the_rest(self, reason: Exception) -> None:
        while True:
            try:
                job = self._deferred.popleft() if self._deferred else self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                self._answer(job.future, None, reason)

    def _do(self, job: _Job) -> None:
        try:
            result, error = job.work(), None
        except Exception as failure:  # whatever it is, it belongs to the caller
            result, error = None, failure
        self._answer(job.future, result, error)

    def _answer(self, future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError as gone:  # the loop was closed: nobody is left to work for
            self._closed = self._closed or gone


def _settle(future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    if future.done():
        return  # its caller was cancelled
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
