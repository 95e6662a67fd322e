"""Keeps a set of services running: starts them, waits until they are ready, restarts what crashes, stops in order.

A service is a child process in a session of its own, so that a Ctrl-C in the terminal reaches only the supervisor,
which then stops the children in their order. Its output goes to one log file.
"""

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp

from deploy.errors import StackFailed
from deploy.local.processes import log_tail, port_holder, signal_group

EXPECTED_STATUSES = frozenset({2, 3})
"""Exit statuses that a restart cannot mend: bad input, something missing, a port in use."""
MAX_FAILURES = 5
"""Crashes in a row, none of them after a healthy stretch, after which the whole stack gives up."""
HEALTHY_S = 30.0
"""Time up after which earlier crashes are forgotten."""
BACKOFF_S = (0.2, 1.0, 2.0, 4.0, 8.0)
"""Pauses before restarts: the first is short, since one crash is the common case."""


@dataclass(frozen=True)
class ServiceSpec:
    """How one service is started and asked for its health."""

    name: str
    command: Sequence[str]
    host: str
    port: int
    log: Path
    environment: Mapping[str, str]
    ready_path: str = "/readyz"
    ready_timeout_s: float = 120.0
    stop_timeout_s: float = 35.0


Change = Literal["started", "ready", "crashed", "stopped"]


@dataclass(frozen=True)
class StackEvent:
    """Something that happened to a service."""

    service: str
    change: Change
    pid: int = 0
    elapsed_s: float = 0.0
    message: str = ""


@dataclass
class _Child:
    spec: ServiceSpec
    process: asyncio.subprocess.Process | None = None
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    failures: int = 0
    restarts: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: asyncio.Task | None = None


class Supervisor:
    """Runs services until told to stop. `failed` is set once, when the stack cannot go on."""

    def __init__(self, on_event: Callable[[StackEvent], None]) -> None:
        self._on_event = on_event
        self._children: dict[str, _Child] = {}
        self.failed: asyncio.Future[StackFailed] = asyncio.get_running_loop().create_future()

    @property
    def pids(self) -> dict[str, int]:
        """Process id of each service that runs now."""
        return {name: c.process.pid for name, c in self._children.items() if c.process and c.process.returncode is None}

    @property
    def ready(self) -> dict[str, bool]:
        """Whether each service is ready now."""
        return {name: child.ready.is_set() for name, child in self._children.items()}

    @property
    def restarts(self) -> dict[str, int]:
        """How often each service was started again."""
        return {name: child.restarts for name, child in self._children.items()}

    def start(self, spec: ServiceSpec) -> None:
        """Start a service and keep it running.

        Raises:
            StackFailed: its port is taken.
        """
        if holder := port_holder(spec.host, spec.port):
            raise StackFailed(
                f"{spec.name}: port {spec.port} on {spec.host} is in use by {holder}: stop it, "
                f"take another port with --set {spec.name}.port=…, or any free ones with --ports auto"
            )
        child = self._children[spec.name] = _Child(spec)
        child.keeper = asyncio.create_task(self._keep(child), name=f"keep {spec.name}")

    async def wait_ready(self, *names: str) -> None:
        """Wait until these services are ready.

        Raises:
            StackFailed: one of them is not ready in its time, or the stack failed.
        """
        await asyncio.gather(*(self._wait_ready(self._children[name]) for name in names))

    async def stop(self, stages: Sequence[Sequence[str]]) -> None:
        """Stop services stage by stage, those of one stage together. Names that do not run are skipped."""
        for stage in stages:
            children = [self._children[name] for name in stage if name in self._children]
            await asyncio.gather(*(self._stop(child) for child in children))

    async def _wait_ready(self, child: _Child) -> None:
        ready = asyncio.create_task(child.ready.wait())
        try:
            done, _ = await asyncio.wait(
                {ready, self.failed}, timeout=child.spec.ready_timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if self.failed in done:
            raise self.failed.result()
        if not done:
            raise StackFailed(
                f"{child.spec.name} is not ready after {child.spec.ready_timeout_s:.0f} s; {_tail(child.spec.log)}"
            )

    async def _keep(self, child: _Child) -> None:
        try:
            while not child.stopping.is_set():
                await self._run_once(child)
        except StackFailed as error:
            self._fail(error)
        except OSError as error:
            self._fail(StackFailed(f"{child.spec.name} cannot be started: {error}"))

    async def _run_once(self, child: _Child) -> None:
        spec, began = child.spec, time.monotonic()
        process = child.process = await _spawn(spec)
        if child.stopping.is_set():
            _send(process, signal.SIGTERM)
        self._tell(StackEvent(spec.name, "started", process.pid))
        prober = asyncio.create_task(self._probe(child, began))
        try:
            status = await process.wait()
        finally:
            prober.cancel()
            child.ready.clear()
        elapsed_s = time.monotonic() - began
        signal_group(process.pid, signal.SIGKILL)  # whatever the service left in its group
        if child.stopping.is_set():
            self._tell(StackEvent(spec.name, "stopped", process.pid, elapsed_s))
            return
        await self._after_crash(child, status, elapsed_s)

    async def _after_crash(self, child: _Child, status: int, elapsed_s: float) -> None:
        reason = f"{_ending(status)} after {elapsed_s:.1f} s"
        if status >= 0:  # of a sudden end the log knows nothing
            reason += f": {last_error(child.spec.log)}"
        child.failures = 1 if elapsed_s > HEALTHY_S else child.failures + 1
        self._tell(StackEvent(child.spec.name, "crashed", child.process.pid if child.process else 0, elapsed_s, reason))
        if status in EXPECTED_STATUSES:
            raise StackFailed(f"{child.spec.name} {reason}")
        if child.failures >= MAX_FAILURES:
            raise StackFailed(
                f"{child.spec.name} crashed {child.failures} times in a row, giving up; last time it {reason}; "
                f"{_tail(child.spec.log)}"
            )
        child.restarts += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(child.stopping.wait(), BACKOFF_S[min(child.failures, len(BACKOFF_S)) - 1])

    async def _probe(self, child: _Child, began: float) -> None:
        """Ask for readiness: often until it is there, then now and then."""
        url = f"http://{child.spec.host}:{child.spec.port}{child.spec.ready_path}"
        timeout = aiohttp.ClientTimeout(total=5.0)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                ready = await _answers(session, url)
                if ready and not child.ready.is_set():
                    child.ready.set()
                    pid = child.process.pid if child.process else 0
                    self._tell(StackEvent(child.spec.name, "ready", pid, time.monotonic() - began))
                elif not ready:
                    child.ready.clear()
                await asyncio.sleep(2.0 if ready else 0.1)

    async def _stop(self, child: _Child) -> None:
        if child.keeper is None:
            return
        child.stopping.set()
        if child.process and child.process.returncode is None:
            _send(child.process, signal.SIGTERM)
        done, _ = await asyncio.wait({child.keeper}, timeout=child.spec.stop_timeout_s)
        if not done and child.process:
            signal_group(child.process.pid, signal.SIGKILL)
            await asyncio.wait({child.keeper}, timeout=5.0)

    def _fail(self, error: StackFailed) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _tell(self, event: StackEvent) -> None:
        self._on_event(event)


async def _spawn(spec: ServiceSpec) -> asyncio.subprocess.Process:
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    with spec.log.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(spec.environment),
            start_new_session=True,
        )


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False


def _send(process: asyncio.subprocess.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return


def _ending(status: int) -> str:
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def last_error(log: Path) -> str:
    """What a service's log says about its end, in one line."""
    for line in reversed(log_tail(log, lines=50)):
        try:
            event: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(event, dict) and event.get("level") in ("error", "critical"):
            cause = event.get("error") or str(event.get("exception", "")).strip().rpartition("\n")[2]
            return cause or str(event.get("event", ""))
    tail = log_tail(log, lines=1)
    return tail[0].strip() if tail else "it said nothing"


def _tail(log: Path) -> str:
    lines = log_tail(log)
    return f"see {log}" + ("; its last lines:\n  " + "\n  ".join(lines) if lines else " (empty)")
