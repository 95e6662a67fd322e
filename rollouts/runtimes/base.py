"""What runs rollouts: the protocol that the launcher speaks, and its values.

A runtime gives every attempt a place of its own, starts the harness there, watches its limits, ends all that it
started, and hands back what it left. The launcher knows nothing of processes or pods.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from schemas import TaskFile


class Stop(StrEnum):
    """The limit at which a runtime ended a harness."""

    WALL = "wall"
    STARTUP = "startup"
    OUTPUT = "output"


@dataclass(frozen=True)
class Places:
    """Where an attempt's folders are, as its harness sees them."""

    workspace: str
    """The current folder: the task's files."""
    home: str
    """`HOME`: configuration that the pack writes."""
    out: str
    """Where the harness leaves its result for the pack to read."""
    harnesses: str
    """Where packs are installed; read only."""


@dataclass(frozen=True)
class Job:
    """One harness process to run."""

    rollout_id: str
    attempt: int
    command: tuple[str, ...]
    env: Mapping[str, str]
    """Added to a bare environment; nothing of the launcher's own is inherited."""
    stdin: bytes = b""
    home_files: Mapping[str, bytes] = field(default_factory=dict)
    """Path below the home folder → content."""
    workspace_files: tuple[TaskFile, ...] = ()
    image: str = ""
    """Container image, for runtimes that use one."""
    preload: str = ""
    """Module whose `main(argv)` the command runs. A runtime may fork it from a process that has it imported."""
    wall_s: float = 0.0
    """From the process's start to its end; 0 is no limit."""
    startup_s: float = 0.0
    """From the process's start to `called`; 0 is no limit."""


@dataclass(frozen=True)
class Ended:
    """How a harness process ended, and what it left."""

    exit_code: int
    """Negative: killed by that signal."""
    stop: Stop | None
    """The limit at which it was ended; None when it ended by itself."""
    started_at_us: int
    exited_at_us: int
    cpu_s: float
    """CPU seconds of the process and of the children that it waited for."""
    memory_peak_bytes: int
    """Peak resident memory of its largest process."""
    stdout: bytes
    stderr: bytes
    """Standard output and error, each up to the output limit."""
    out: Mapping[str, bytes]
    """Files that it left in its `out` folder."""
    workspace: Path
    """Its workspace as it left it."""
    image_digest: str = ""


@dataclass(frozen=True)
class Script:
    """A program to run on a clean copy of an attempt's workspace, beyond the harness's reach."""

    rollout_id: str
    attempt: int
    command: tuple[str, ...]
    files: tuple[TaskFile, ...]
    """Laid over the copy; the harness never saw them."""
    env: Mapping[str, str]
    answer: str
    """Written to the file that the variable `ANSWER_FILE` names."""
    timeout_s: float


@dataclass(frozen=True)
class ScriptEnded:
    """How a script ended."""

    exit_code: int
    timed_out: bool
    stdout: bytes
    stderr: bytes


class Runtime(Protocol):
    """Runs harnesses and scripts. Cancelling a `run` ends its processes at once."""

    @property
    def node(self) -> str:
        """Name of the machine, for the events."""
        ...

    async def start(self) -> None:
        """Make ready; end whatever an earlier launcher on the same state left running.

        Raises:
            StateInUse: another launcher is alive on it.
        """
        ...

    async def close(self) -> None:
        """End what still runs."""
        ...

    def places(self, rollout_id: str, attempt: int) -> Places:
        """The folders that `run` will make for an attempt."""
        ...

    async def run(self, job: Job, called: asyncio.Event, on_started: Callable[[int], None]) -> Ended:
        """Run a harness to its end; no process of it is left.

        Args:
            job: what to run.
            called: set once its first model call was seen.
            on_started: told when the process started, epoch µs.

        Raises:
            RuntimeFault: it could not be started.
        """
        ...

    async def run_script(self, script: Script) -> ScriptEnded:
        """Run a script on a copy of an attempt's workspace.

        Raises:
            RuntimeFault: it could not be started.
        """
        ...

    async def discard(self, rollout_id: str, attempt: int) -> None:
        """Delete what is kept of an attempt; nothing happens when there is nothing."""
        ...
