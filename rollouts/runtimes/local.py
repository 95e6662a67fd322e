"""Rollouts as processes of this machine: one folder and one session an attempt.

Not a sandbox: a harness runs with the launcher's rights and sees the machine. It is kept apart by folder, environment
and process tree only, which is right for development and for harnesses that are trusted.
"""

import asyncio
import fcntl
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rollouts.errors import RuntimeFault, StateInUse
from rollouts.runtimes import folders
from rollouts.runtimes.base import Ended, Job, Places, Script, ScriptEnded, Stop
from rollouts.runtimes.environment import RUNTIME_MARK, bare, own_python
from rollouts.runtimes.output import BoundedOutput
from rollouts.runtimes.processes import has_mark, marked, signal_all
from rollouts.runtimes.spawner import Exit, Kept, Order, Spawner

_SCAN_SHARE = 0.02
"""Most of the time that may go into measuring a workspace."""
_REAP_S = 10.0


@dataclass(frozen=True)
class LocalLimits:
    """What one attempt may use, whatever its task says."""

    output_bytes: int
    workspace_bytes: int
    kill_grace_s: float


class LocalRuntime:
    """Runs harnesses and verifier scripts as local processes below `state`/rollouts; packs lie in `harnesses`."""

    def __init__(self, state: Path, harnesses: Path, limits: LocalLimits) -> None:
        state = state.resolve()
        self._rollouts = state / "rollouts"
        self._harnesses = harnesses.resolve()
        self._limits = limits
        self._mark = folders.state_mark(state)
        self._spawner = Spawner(own_python() | self.mark)
        self._lock_file: int | None = None

    @property
    def node(self) -> str:
        """This machine's name."""
        return socket.gethostname()

    @property
    def mark(self) -> dict[str, str]:
        """Environment variable by which processes of this state folder are found."""
        return {RUNTIME_MARK: self._mark}

    async def start(self) -> None:
        """Take the state folder, and end what an earlier launcher left running.

        Raises:
            StateInUse: another launcher is alive on it.
            RuntimeFault: processes of an earlier launcher cannot be ended.
        """
        for folder in (self._rollouts, self._harnesses):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock_file = _lock(self._rollouts / "lock")
        await self._reap(f"{RUNTIME_MARK}={self._mark}")

    async def close(self) -> None:
        """End the templates and whatever still runs."""
        await self._spawner.close()
        if self._lock_file is not None:
            await self._reap(f"{RUNTIME_MARK}={self._mark}")
            os.close(self._lock_file)
            self._lock_file = None

    def places(self, rollout_id: str, attempt: int) -> Places:
        """The folders of an attempt."""
        root = self._root(rollout_id, attempt)
        return Places(str(root / "workspace"), str(root / "home"), str(root / "out"), str(self._harnesses))

    async def run(self, job: Job, called: asyncio.Event, on_started: Callable[[int], None]) -> Ended:
        """Run a harness to its end. See `Runtime.run`."""
        root = self._root(job.rollout_id, job.attempt)
        await asyncio.to_thread(folders.make_attempt, root, job.home_files, job.workspace_files)
        env = bare() | {"HOME": str(root / "home"), "PWD": str(root / "workspace")} | dict(job.env) | self.mark
        order = Order(job.command, env, str(root / "workspace"), self._limits.workspace_bytes, job.preload)
        async with self._process(order, root, "harness", job.stdin) as process:
            on_started(process.kept.started_at_us)
            stop = await self._watch(process, job, called, root)
            if stop is not None:
                await self._end(process.kept)
            exit_ = await process.kept.wait()
        stdout, stderr = (output.tail() for output in process.outputs)
        return Ended(
            exit_code=exit_.exit_code,
            stop=stop,
            started_at_us=process.kept.started_at_us,
            exited_at_us=exit_.at_us,
            cpu_s=exit_.cpu_s,
            memory_peak_bytes=exit_.memory_peak_bytes,
            stdout=stdout,
            stderr=stderr,
            out=await asyncio.to_thread(folders.read_out, root / "out"),
            workspace=root / "workspace",
        )

    async def run_script(self, script: Script) -> ScriptEnded:
        """Run a script on a copy of an attempt's workspace. See `Runtime.run_script`."""
        root = self._root(script.rollout_id, script.attempt) / "verify"
        source = root.parent / "workspace"
        answer = root / "answer.txt"
        await asyncio.to_thread(_prepare_script, root, source, script, answer)
        places = {"HOME": str(root / "home"), "PWD": str(root / "workspace"), "ANSWER_FILE": str(answer)}
        order = Order(
            script.command, bare() | places | dict(script.env) | self.mark, places["PWD"], self._limits.workspace_bytes
        )
        async with self._process(order, root, "verifier", b"") as process:
            exit_ = await process.until(time.monotonic() + script.timeout_s)
            flooded, timed_out = process.flooded.is_set(), exit_ is None
            if exit_ is None:
                process.kept.signal(signal.SIGKILL)
                exit_ = await process.kept.wait()
        stdout, stderr = (output.tail() for output in process.outputs)
        return ScriptEnded(exit_.exit_code, timed_out and not flooded, stdout, stderr)

    async def discard(self, rollout_id: str, attempt: int) -> None:
        """Delete an attempt's folder."""
        with suppress(OSError):
            await asyncio.to_thread(folders.remove, self._root(rollout_id, attempt))

    def _root(self, rollout_id: str, attempt: int) -> Path:
        return self._rollouts / f"{rollout_id}-{attempt}"

    @asynccontextmanager
    async def _process(self, order: Order, root: Path, name: str, stdin: bytes) -> AsyncIterator["_Process"]:
        """A process for the length of the block; when that is left early, it is killed with all that it started."""
        flooded = asyncio.Event()
        outputs = [
            BoundedOutput(root / f"{name}.{stream}.log", self._limits.output_bytes, flooded.set)
            for stream in ("stdout", "stderr")
        ]
        input_ = _memory_file(stdin)
        kept: Kept | None = None
        try:
            try:
                kept = await self._spawner.spawn(order, (input_, outputs[0].descriptor, outputs[1].descriptor))
            finally:
                for descriptor in (input_, outputs[0].descriptor, outputs[1].descriptor):
                    os.close(descriptor)
            yield _Process(kept, outputs, flooded)
        finally:
            if kept is not None and not kept.ended:
                kept.signal(signal.SIGKILL)
                with suppress(RuntimeFault):
                    await kept.wait()
            if kept is not None and kept.lost:
                await self._reap(f"HOME={order.env['HOME']}")
            for output in outputs:
                output.close()

    async def _watch(self, process: "_Process", job: Job, called: asyncio.Event, root: Path) -> Stop | None:
        """Wait for the process's end or for a limit."""
        started = time.monotonic()
        wall = started + job.wall_s if job.wall_s else float("inf")
        startup = started + job.startup_s if job.startup_s else float("inf")
        scan = started + 1.0
        while True:
            due = min(wall, scan, float("inf") if called.is_set() else startup)
            exit_ = await process.until(due)
            now = time.monotonic()
            if process.flooded.is_set():  # also when that ended it: nobody reads its output any more
                return Stop.OUTPUT
            if exit_ is not None:
                return None
            if now >= wall:
                return Stop.WALL
            if now >= startup and not called.is_set():
                return Stop.STARTUP
            if now >= scan:
                used = await asyncio.to_thread(folders.folder_bytes, root)
                if used > self._limits.workspace_bytes:
                    return Stop.OUTPUT
                scan = time.monotonic() + max(1.0, (time.monotonic() - now) / _SCAN_SHARE)

    async def _end(self, kept: Kept) -> None:
        """Ask, then force."""
        kept.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(kept.wait(), self._limits.kill_grace_s)
            return
        kept.signal(signal.SIGKILL)

    async def _reap(self, mark: str) -> None:
        """Kill every process that was started with this `NAME=value`."""
        deadline = time.monotonic() + _REAP_S
        while pids := await asyncio.to_thread(marked, mark):
            if time.monotonic() > deadline:
                raise RuntimeFault(
                    f"processes {pids} of an earlier launcher cannot be ended: kill them, then start again"
                )
            signal_all(pids, signal.SIGKILL, lambda pid: has_mark(pid, mark.encode()))
            await asyncio.sleep(0.05)


@dataclass
class _Process:
    kept: Kept
    outputs: list[BoundedOutput]
    flooded: asyncio.Event

    async def until(self, due: float) -> Exit | None:
        """Wait for the end, a flood, or the time `due` (monotonic); None when it still runs."""
        exit_ = asyncio.ensure_future(self.kept.wait())
        flood = asyncio.ensure_future(self.flooded.wait())
        try:
            timeout = None if due == float("inf") else max(0.0, due - time.monotonic())
            await asyncio.wait({exit_, flood}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            return exit_.result() if exit_.done() else None
        finally:
            for waiter in (exit_, flood):
                waiter.cancel()


def _prepare_script(root: Path, source: Path, script: Script, answer: Path) -> None:
    folders.make_attempt(root, {}, ())
    folders.copy_workspace(source, root / "workspace", script.files)
    answer.write_text(script.answer)


def _memory_file(content: bytes) -> int:
    """A descriptor that reads `content`, however long: a pipe would need somebody to fill it."""
    descriptor = os.memfd_create("stdin")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StateInUse(
            f"another launcher (pid {holder}) works in {path.parent.parent}: "
            "stop it, or give this one a state folder of its own"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor
