"""Starts vLLM, waits until it answers, passes its log on, and takes it down with us."""

import asyncio
import ctypes
import os
import signal
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aiohttp
from structlog.typing import FilteringBoundLogger

from ingest.service.context import ServiceContext
from ingest.service.errors import PortInUse
from learner.serving.errors import VllmFailed
from learner.serving.running import RunningEngine
from learner.serving.settings import EngineSettings
from learner.serving.vllm.command import arguments, environment

_TAIL_LINES = 20
_PROGRESS_S = 10.0
_STOP_S = 15.0
_PR_SET_PDEATHSIG = 1


@asynccontextmanager
async def vllm_engine(ctx: ServiceContext, settings: EngineSettings) -> AsyncIterator[RunningEngine]:
    """A vLLM server, answering while the block runs.

    Raises:
        VllmFailed: its environment is not there, it ended, or it did not answer in time; with the end of its log.
        PortInUse: another process listens on the port.
    """
    if not settings.vllm.python.exists():
        raise VllmFailed(f"vLLM is not installed: {settings.vllm.python} is not there; `make install-vllm` brings it")
    if not (settings.model / "config.json").is_file():
        raise VllmFailed(f"{settings.model} is no model folder: `python -m learner.models smollm2 DIR` makes one")
    settings = settings.model_copy(update={"port": _free_port(ctx.name, settings)})
    child = await VllmProcess.start(settings, ctx.log)
    try:
        url = f"http://{settings.host}:{settings.port}"
        await child.wait_until_it_answers(url, settings)
        yield RunningEngine(url, child.failed)
    finally:
        await child.stop()


class VllmProcess:
    """The child and the end of its log."""

    def __init__(self, process: asyncio.subprocess.Process, log: FilteringBoundLogger) -> None:
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._process = process
        self._log = log
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._reader = asyncio.create_task(self._read(), name="vllm log")

    @classmethod
    async def start(cls, settings: EngineSettings, log: FilteringBoundLogger) -> "VllmProcess":
        """Starts the server's process."""
        process = await asyncio.create_subprocess_exec(
            *arguments(settings),
            env=environment(settings, os.environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
            preexec_fn=_die_with_parent(),
        )
        log.info("vLLM starts", pid=process.pid, model=str(settings.model))
        return cls(process, log)

    async def wait_until_it_answers(self, url: str, settings: EngineSettings) -> None:
        """Returns when the server is up and has sampled a first token, which is slow.

        Raises:
            VllmFailed: it ended, or the time is over.
        """
        began = time.monotonic()
        next_word = began + _PROGRESS_S
        timeout = aiohttp.ClientTimeout(total=settings.vllm.start_timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while not await _is_healthy(session, url):
                now = time.monotonic()
                if self.failed.done():
                    raise self.failed.result()
                if now - began > settings.vllm.start_timeout_s:
                    raise VllmFailed(f"vLLM does not answer after {now - began:.0f} s; {self._last_words()}")
                if now > next_word:
                    next_word += _PROGRESS_S
                    self._log.info(
                        "waiting for vLLM", elapsed_s=round(now - began), last=next(reversed(self._tail), "")
                    )
                await asyncio.sleep(0.5)
            self._log.info("vLLM answers", elapsed_s=round(time.monotonic() - began, 1))
            await self._first_token(session, url)
        self._log.info("vLLM is warm", elapsed_s=round(time.monotonic() - began, 1))

    async def _first_token(self, session: aiohttp.ClientSession, url: str) -> None:
        body = {"token_ids": [0], "sampling_params": {"max_tokens": 1, "logprobs": 0}}
        try:
            async with session.post(f"{url}/inference/v1/generate", json=body) as response:
                if response.status == 200:
                    return
                reason = f"{response.status} {(await response.text())[:300]}"
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = repr(error)
        raise VllmFailed(f"vLLM fails at its first token: {reason}; {self._last_words()}")

    async def stop(self) -> None:
        """Asks it to end, and insists after a while."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), _STOP_S)
            except TimeoutError:
                self._log.warning("vLLM does not stop, killing it")
                with suppress(ProcessLookupError):
                    self._process.kill()
        await self._reader

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            text = line.decode(errors="replace").rstrip()
            if text:
                self._tail.append(text)
                self._log.info("vllm", line=text)
        status = await self._process.wait()
        self.failed.set_result(VllmFailed(f"vLLM ended with status {status}; {self._last_words()}"))

    def _last_words(self) -> str:
        return "the end of its log: " + " | ".join(list(self._tail)[-_TAIL_LINES:] or ["(empty)"])


async def _is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/health") as response:
            return response.status == 200
    except aiohttp.ClientError:
        return False


def _free_port(service: str, settings: EngineSettings) -> int:
    """The configured port, or any free one; vLLM itself would only find out after a minute."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            raise PortInUse(service, settings.host, settings.port) from error
        return probe.getsockname()[1]


def _die_with_parent() -> Callable[[], None]:
    """A function for the forked child: the kernel ends it when we are gone, even after SIGKILL (prctl(2))."""
    libc = ctypes.CDLL(None, use_errno=True)

    def set_signal() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return set_signal
