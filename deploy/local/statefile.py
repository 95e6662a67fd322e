"""Who runs the stack of a state folder: a lock that the kernel frees, and a file that says what runs where."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psutil

from deploy.errors import AlreadyRunning, DeployError
from deploy.local.processes import kill_all, marked_processes, same_process


class RunningService(msgspec.Struct, kw_only=True):
    """One child of a running stack."""

    pid: int
    port: int
    log: str


class RunningStack(msgspec.Struct, kw_only=True):
    """A running stack as other commands see it."""

    pid: int
    created_at_s: float
    bootstrap_servers: str = ""
    topic_prefix: str = ""
    services: dict[str, RunningService] = {}

    @property
    def alive(self) -> bool:
        """Whether the supervising process still runs."""
        return same_process(self.pid, self.created_at_s)


def stack_file(state: Path) -> Path:
    """Where a running stack describes itself."""
    return state / "run" / "stack.json"


def read_stack(state: Path) -> RunningStack | None:
    """The stack that a state folder speaks of, alive or not; None when there is none."""
    try:
        return msgspec.json.decode(stack_file(state).read_bytes(), type=RunningStack)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.MsgspecError, OSError) as error:
        raise DeployError(f"{stack_file(state)} is unreadable ({error}): delete it when no stack runs") from error


def running_stack(state: Path) -> RunningStack | None:
    """The stack of a state folder, if it runs."""
    stack = read_stack(state)
    return stack if stack and stack.alive else None


def write_stack(state: Path, stack: RunningStack) -> None:
    """Replace the description in one step, so that a reader never sees half of it."""
    path = stack_file(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(stack), indent=2))
    part.replace(path)


@contextmanager
def hold_state(state: Path) -> Iterator[RunningStack]:
    """Be the only stack of a state folder; reaps what a killed one left. Yields this process's description.

    Raises:
        AlreadyRunning: another process holds it.
    """
    try:
        (state / "run").mkdir(parents=True, exist_ok=True)
        lock = os.open(state / "run" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DeployError(f"state folder {state} cannot be used: {error}") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = read_stack(state)
            holder = f"pid {other.pid}" if other else "another process"
            raise AlreadyRunning(
                f"a stack already runs on {state} ({holder}): `forgestream down` stops it, "
                f"or choose another folder with --state"
            ) from None
        kill_all(marked_processes(state))
        stack = RunningStack(pid=os.getpid(), created_at_s=psutil.Process().create_time())
        write_stack(state, stack)
        try:
            yield stack
        finally:
            stack_file(state).unlink(missing_ok=True)
    finally:
        os.close(lock)  # also frees the lock
