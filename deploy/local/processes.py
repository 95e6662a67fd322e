"""Child processes that never outlive their stack: started apart, stopped as a group, found again by their marker."""

import ctypes
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

MARKER = "_FORGESTREAM_STACK"
"""Variable in the environment of everything that a stack starts: the stack's state folder."""
_PR_SET_PDEATHSIG = 1
_PORTS = range(20_000, 32_000)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel send this process SIGTERM when its parent dies; ends it now if that has happened already.

    Linux only, see prctl(2); elsewhere a stack finds what it left behind by the marker when it starts again.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        raise SystemExit(128 + signal.SIGTERM)


def marked_environment(state: Path) -> dict[str, str]:
    """This process's environment and the marker of a stack."""
    return {**os.environ, MARKER: str(state.resolve())}


def marked_processes(state: Path) -> list[psutil.Process]:
    """Every process that the stack of a state folder started and that still runs; this one and its parents excepted."""
    wanted, own = str(state.resolve()), {os.getpid(), *(p.pid for p in psutil.Process().parents())}
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid not in own and process.environ().get(MARKER) == wanted:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone meanwhile, or another user's
    return found


def kill_all(processes: Iterable[psutil.Process], timeout_s: float = 5.0) -> list[int]:
    """SIGKILL, then wait. Returns the pids that were there."""
    there = []
    for process in processes:
        try:
            process.kill()
            there.append(process)
        except psutil.Error:
            continue
    psutil.wait_procs(there, timeout_s)
    return [process.pid for process in there]


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group; nothing if it is gone."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def same_process(pid: int, created_at_s: float) -> bool:
    """Whether `pid` is still the process that was started at that time, and no zombie."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - created_at_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def wait_gone(pid: int, created_at_s: float, timeout_s: float) -> bool:
    """Wait until a process that is no child of ours has ended; False when it has not."""
    deadline = time.monotonic() + timeout_s
    while same_process(pid, created_at_s):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Different ports on which nobody listens now.

    They lie below the range from which the kernel takes ports of outgoing connections: a service that is started
    again must not find its port taken by such a connection.
    """
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            break
        if _is_free(host, port):
            found.append(port)
    return found


def port_holder(host: str, port: int) -> str | None:
    """Who listens on a port, as `pid 12 (java)`; None when it is free."""
    if _is_free(host, port):
        return None
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "another process"


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False


def log_tail(path: Path, lines: int = 15, most_bytes: int = 32_768) -> list[str]:
    """The last lines of a log file; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - most_bytes))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
