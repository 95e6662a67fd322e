"""The launcher's side of `template` and `keeper`: starts processes and learns how they ended, without blocking."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from rollouts.errors import RuntimeFault
from rollouts.runtimes.template import ORDER_LIMIT_BYTES

_REPORT_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True)
class Order:
    """One process to start."""

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    file_limit_bytes: int
    module: str = ""
    """Run this module's `main` in a fork of a process that has it imported, instead of executing the command."""


@dataclass(frozen=True)
class Exit:
    """How a process ended; nothing that it started is left."""

    exit_code: int
    """Negative: killed by that signal."""
    at_us: int
    """When all was ended, epoch µs."""
    cpu_s: float
    memory_peak_bytes: int


class Kept:
    """A running process in the hands of its keeper."""

    def __init__(self, control: socket.socket, pid: int, started_at_us: int) -> None:
        self._control = control
        self.pid = pid
        self.started_at_us = started_at_us
        self._exit: asyncio.Task[Exit] = asyncio.create_task(self._read_exit())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started."""
        with suppress(OSError):  # it has ended meanwhile
            self._control.send(json.dumps({"signal": number}).encode())

    async def wait(self) -> Exit:
        """Wait for the end; may be called, and cancelled, any number of times.

        Raises:
            RuntimeFault: the keeper was killed: the end is not known.
        """
        return await asyncio.shield(self._exit)

    @property
    def ended(self) -> bool:
        """Whether the end is known."""
        return self._exit.done()

    @property
    def lost(self) -> bool:
        """Whether the keeper was killed: what it kept may still run."""
        return self._exit.done() and not self._exit.cancelled() and self._exit.exception() is not None

    async def _read_exit(self) -> Exit:
        try:
            return Exit(**await _message(self._control, "was killed while its process ran"))
        finally:
            self._control.close()


class Spawner:
    """Starts processes from templates, one for each preloaded module, made when first needed."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env` is the environment of the templates; no secrets."""
        self._env = dict(env)
        self._templates: dict[str, _Template] = {}

    async def spawn(self, order: Order, stdio: tuple[int, int, int]) -> Kept:
        """Start a process with these descriptors as standard input, output and error. The caller closes them.

        Raises:
            RuntimeFault: it cannot be started: no such program, no memory, …
        """
        message = json.dumps({**asdict(order), "command": list(order.command), "env": dict(order.env)}).encode()
        if len(message) > ORDER_LIMIT_BYTES:
            raise RuntimeFault(f"command and environment have {len(message)} bytes, more than {ORDER_LIMIT_BYTES}")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        try:
            with theirs:
                template = self._templates.setdefault(order.module, _Template(order.module, self._env))
                await template.fork(message, [theirs.fileno(), *stdio])
            answer = await _message(ours, "ended before it had started a process")
            if "failed" in answer:
                raise RuntimeFault(answer["failed"])
        except BaseException:
            ours.close()  # a keeper that is under way sees this and ends what it started
            raise
        return Kept(ours, answer["pid"], answer["at_us"])

    async def close(self) -> None:
        """End the templates. What they started goes on."""
        for template in self._templates.values():
            await template.close()
        self._templates.clear()


class _Template:
    """One template process; started when first needed, and again when it died."""

    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        self._module = module
        self._env = env
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None

    async def fork(self, message: bytes, descriptors: list[int]) -> None:
        async with self._lock:
            for again in (True, False):
                orders = self._orders or await self._start()
                try:
                    return await _send(orders, message, descriptors)
                except OSError as error:
                    await self._end()
                    if not again:
                        raise RuntimeFault(f"the {self._name} cannot take orders: {error}") from error

    async def close(self) -> None:
        async with self._lock:
            await self._end()

    @property
    def _name(self) -> str:
        return f"template process of {self._module or 'programs'}"

    async def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        command = [sys.executable, "-P", "-m", "rollouts.runtimes.template", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns in a millisecond; nothing is awaited of it
                [*command, *([self._module] if self._module else [])],
                env=self._env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what it prints goes where our errors go
                start_new_session=True,
            )
        self._orders = ours
        if await asyncio.get_running_loop().sock_recv(ours, 16) != b"ready":
            await self._end()
            raise RuntimeFault(f"the {self._name} did not start; its messages are in the launcher's log")
        return ours

    async def _end(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            await asyncio.to_thread(process.wait)


async def _message(control: socket.socket, otherwise: str) -> dict:
    try:
        message = await asyncio.get_running_loop().sock_recv(control, _REPORT_LIMIT_BYTES)
    except OSError as error:
        raise RuntimeFault(f"the keeper of a rollout {otherwise}: {error}") from error
    if not message:
        raise RuntimeFault(f"the keeper of a rollout {otherwise}")
    return json.loads(message)


async def _send(orders: socket.socket, message: bytes, descriptors: list[int]) -> None:
    while True:
        try:
            socket.send_fds(orders, [message], descriptors)
            return
        except BlockingIOError:  # more orders than the socket holds: a fork takes milliseconds
            await asyncio.sleep(0.005)
