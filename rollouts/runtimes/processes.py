"""Finds and ends processes through /proc. Standard library alone: the processes that fork rollouts load it too.

Source of the formats: proc_pid_stat(5), proc_pid_environ(5).
"""

import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

PROC = "/proc"


@dataclass(frozen=True)
class ProcessInfo:
    """One line of the process table."""

    pid: int
    parent: int
    zombie: bool


def process_table() -> list[ProcessInfo]:
    """All processes of this machine that can be seen."""
    names = os.listdir(PROC)  # noqa: PTH208 - a Path for each of some hundred entries would double the cost
    return [info for name in names if name.isdigit() and (info := read_process(int(name)))]


def read_process(pid: int) -> ProcessInfo | None:
    """A process's line, or None when it is gone."""
    stat = _read(pid, "stat")
    if not stat:
        return None
    # the program's name may hold blanks and brackets: the fields begin behind the last bracket
    state, parent = stat[stat.rindex(b")") + 2 :].split(b" ", 2)[:2]
    return ProcessInfo(pid, int(parent), zombie=state == b"Z")


def descendants(root: int, table: Iterable[ProcessInfo]) -> list[int]:
    """Living processes below `root`, not itself."""
    children: dict[int, list[ProcessInfo]] = defaultdict(list)
    for process in table:
        children[process.parent].append(process)
    found, open_ = [], [root]
    while open_:
        below = children[open_.pop()]
        open_ += [process.pid for process in below]
        found += [process.pid for process in below if not process.zombie]
    return found


def marked(mark: str) -> list[int]:
    """Living processes that were started with this `NAME=value` in their environment."""
    wanted = mark.encode()
    own = os.getpid()
    return [p.pid for p in process_table() if p.pid != own and has_mark(p.pid, wanted)]


def has_mark(pid: int, mark: bytes) -> bool:
    """Whether a process was started with this `NAME=value`."""
    return mark in _read(pid, "environ").split(b"\0")


def signal_all(pids: Iterable[int], number: signal.Signals, still: Callable[[int], bool] = lambda _pid: True) -> None:
    """Signal each process that is still there, if `still` holds for it once its number cannot be taken by another."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            handle = os.pidfd_open(pid)
            try:
                if still(pid):
                    signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"{PROC}/{pid}/{name}", "rb") as file:  # noqa: PTH123 - see process_table
            return file.read()
    except OSError:
        return b""
