"""Speaks with the reasoning-gym process: starts it when it is first needed, and again when it dies or hangs."""

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rollouts.errors import VerifierError, VerifierTimeout
from rollouts.options import OptionsError, Problem
from rollouts.runtimes.environment import own_python

_LINE_LIMIT = 64 * 1024 * 1024


class GymWorker:
    """One reasoning-gym process for all who ask; requests are served one after the other."""

    def __init__(
        self, *, env: Mapping[str, str] | None = None, start_timeout_s: float = 180.0, command: tuple[str, ...] = ()
    ) -> None:
        """`env` is added to the process's environment; `command` replaces the process (tests)."""
        self._env = dict(env or {})
        self._start_timeout_s = start_timeout_s
        self._command = command or (sys.executable, "-P", "-m", "rollouts.verifiers.gym_worker")
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._warming: asyncio.Task[None] | None = None
        self.datasets: tuple[str, ...] = ()
        """Names of all data sets, once the process runs."""

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid if self._process is not None else None

    async def questions(
        self, dataset: str, config: Mapping[str, Any], seed: int, start: int, count: int, *, timeout_s: float = 120.0
    ) -> list[tuple[str, str]]:
        """Question and expected answer of `count` items from index `start` on.

        Raises:
            OptionsError: no such data set, or a configuration that it refuses.
            VerifierError: reasoning-gym failed, or is not installed.
        """
        request = {"op": "questions", "start": start, "count": count}
        value = await self._ask(request | _named(dataset, config, seed), timeout_s)
        return [(question, answer) for question, answer in value]

    async def score(
        self, dataset: str, config: Mapping[str, Any], seed: int, index: int, answer: str, *, timeout_s: float = 60.0
    ) -> float:
        """The data set's own score of an answer to its item `index`.

        Raises:
            OptionsError: no such data set, or a configuration that it refuses.
            VerifierTimeout: no answer within `timeout_s`; the process is started afresh.
            VerifierError: the scorer failed, or the process ended.
        """
        request = {"op": "score", "index": index, "answer": answer}
        return float(await self._ask(request | _named(dataset, config, seed), timeout_s))

    def warm_up(self) -> None:
        """Start the process in the background, so that the first request need not wait for it. Once is enough."""
        if self._warming is None:
            self._warming = asyncio.create_task(self._start_ahead())

    async def close(self) -> None:
        """End the process."""
        if self._warming is not None:
            self._warming.cancel()
            await asyncio.wait([self._warming])
        async with self._lock:
            await self._end()

    async def _start_ahead(self) -> None:
        with suppress(VerifierError):  # whoever needs the process meets the error again
            async with self._lock:
                await self._running()

    async def _ask(self, request: dict[str, Any], timeout_s: float) -> Any:
        async with self._lock:
            answer = await self._answer(request, timeout_s)
        if "error" not in answer:
            return answer["value"]
        if answer.get("input"):
            raise OptionsError(Problem("config", f"{request['dataset']}: {answer['error']}"))
        raise VerifierError(f"reasoning-gym {request['dataset']}: {answer['error']}")

    async def _answer(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        for again in (True, False):
            process = await self._running()
            if self.datasets and request["dataset"] not in self.datasets:
                raise OptionsError(Problem("dataset", f"reasoning-gym has no data set {request['dataset']!r}"))
            try:
                return await asyncio.wait_for(self._exchange(process, request), timeout_s)
            except TimeoutError:
                await self._end()
                raise VerifierTimeout(f"reasoning-gym did not answer within {timeout_s:g} s") from None
            except VerifierError:
                await self._end()  # it died, perhaps long ago and for a reason of its own: one more try
                if not again:
                    raise
            except BaseException:
                await self._end()  # an answer that was not read would be taken for the next one
                raise
        raise AssertionError("unreachable")

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        await self._end()
        # set order decides some data sets' items: the same item must come out in every process
        env = own_python() | self._env | {"PYTHONHASHSEED": "0", "MPLBACKEND": "agg"}
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, env=env, limit=_LINE_LIMIT, start_new_session=True
        )
        try:
            ready = await asyncio.wait_for(self._exchange(self._process, None), self._start_timeout_s)
        except BaseException as error:
            await self._end()
            if isinstance(error, TimeoutError):
                raise VerifierError(f"reasoning-gym did not start within {self._start_timeout_s:g} s") from None
            raise
        if "error" in ready:
            await self._end()
            raise VerifierError(ready["error"])
        self.datasets = tuple(ready["value"])
        return self._process

    async def _exchange(self, process: asyncio.subprocess.Process, request: dict[str, Any] | None) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        if request is not None:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            with suppress(ConnectionError):  # it ended: the empty line below says so
                await process.stdin.drain()
        line = await process.stdout.readline()
        if not line.endswith(b"\n"):
            raise VerifierError("the reasoning-gym process ended unexpectedly; its messages are in the launcher's log")
        return json.loads(line)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


def _named(dataset: str, config: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return {"dataset": dataset, "config": dict(config), "seed": seed}
