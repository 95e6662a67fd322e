"""Keeps one rollout attempt: starts its first process, and leaves nothing of it alive.

One keeper process an attempt, forked by `rollouts.runtimes.template`. It is the adoptive parent of all that the
harness starts (prctl(2), PR_SET_CHILD_SUBREAPER): daemons and orphans become its children, so it knows when nothing is
left, and can end everything. It does so when the first process has ended, when it is told to, and when the launcher
dies, which it sees as the end of its control socket.

On the socket, one JSON object a message. To the keeper: {"signal": 15} to all processes, {"signal": 9} likewise.
From it: {"pid", "at_us"} once the process runs, or {"failed": why}; at the end {"exit_code", "at_us", "cpu_s",
"memory_peak_bytes"}.
Standard library alone, so that a fork is small.
"""

import ctypes
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from rollouts.runtimes.processes import descendants, process_table, signal_all

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def keep(order: dict[str, Any], control: socket.socket, stdio: list[int]) -> NoReturn:
    """Run the order to its end in this process, then exit.

    Args:
        order: `command`, `module` (forked instead of executed; empty: executed), `env`, `cwd`, `file_limit_bytes`.
        control: the socket to the launcher.
        stdio: descriptors for standard input, output and error of the harness.
    """
    status = 1
    try:
        os.setsid()
        if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
        pid, failure = _launch(order, control, stdio)
        if failure:
            control.send(json.dumps({"failed": failure}).encode())
        else:
            _report(_attend(pid, control), control)
        status = 0
    except Exception:
        traceback.print_exc()
    finally:
        _end_all()
        os._exit(status)


def _launch(order: dict[str, Any], control: socket.socket, stdio: list[int]) -> tuple[int, str]:
    """Fork the first process; its pid, and why it could not become the harness (empty when it did)."""
    reader, writer = os.pipe()  # closed by a successful exec
    at_us = _now_us()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        control.close()
        _become(order, stdio, writer)
    os.close(writer)
    for descriptor in stdio:
        os.close(descriptor)
    with os.fdopen(reader, "rb") as pipe:
        failure = pipe.read().decode(errors="replace")
    if not failure:
        control.send(json.dumps({"pid": pid, "at_us": at_us}).encode())
    return pid, failure


def _become(order: dict[str, Any], stdio: list[int], failures: int) -> NoReturn:
    """Turn this process into the harness."""
    status = 127
    try:
        os.setsid()
        for target, descriptor in enumerate(stdio):
            os.dup2(descriptor, target)
        for descriptor in stdio:
            os.close(descriptor)
        os.chdir(order["cwd"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_limit_bytes"], order["file_limit_bytes"]))
        os.environ.clear()
        os.environ.update(order["env"])
        if not order["module"]:
            for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored_by_python, signal.SIG_DFL)
            os.execvpe(order["command"][0], order["command"], order["env"])
        os.close(failures)
        status = _run_module(order["module"], order["command"])
    except OSError as error:
        with suppress(OSError):
            os.write(failures, f"cannot run {order['command'][0]}: {error}".encode())
    except BaseException:
        status = 1
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _run_module(module: str, command: list[str]) -> int:
    """Call the imported module's `main` with the arguments that stand behind `-m MODULE` in the command."""
    arguments = command[command.index(module) + 1 :]
    try:
        return importlib.import_module(module).main(arguments)
    except SystemExit as exit_:
        return exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)


def _attend(pid: int, control: socket.socket) -> int:
    """Wait for the first process; pass signals on. Its exit status, negative for a signal."""
    handle = os.pidfd_open(pid)
    poller = select.poll()
    poller.register(handle, select.POLLIN)
    poller.register(control, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poller.poll(1000)}
        if control.fileno() in ready:
            message = control.recv(4096)
            if not message:  # the launcher is dead: nobody wants the result
                return -signal.SIGKILL
            signal_all(descendants(os.getpid(), process_table()), signal.Signals(json.loads(message)["signal"]))
        if handle in ready:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _reap_orphans(pid)


def _reap_orphans(first: int) -> None:
    """Take the exit status of adopted processes that have ended, so that they do not fill the process table."""
    while dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if dead.si_pid == first:
            return
        os.waitpid(dead.si_pid, 0)


def _report(exit_code: int, control: socket.socket) -> None:
    _end_all()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report = {
        "exit_code": exit_code,
        "at_us": _now_us(),
        "cpu_s": round(used.ru_utime + used.ru_stime, 6),
        "memory_peak_bytes": used.ru_maxrss * 1024,
    }
    with suppress(OSError):  # the launcher is dead
        control.send(json.dumps(report).encode())


def _end_all() -> None:
    """Kill and reap until no descendant is left. Without children there is nobody to look for, which is the rule."""
    while True:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            signal_all(descendants(os.getpid(), process_table()), signal.SIGKILL)
            _wait_for_one()
            continue
        return


def _now_us() -> int:
    return time.time_ns() // 1_000


def _wait_for_one() -> None:
    """Wait until a child has ended, 50 ms at most: one that hangs in the kernel must not hold the others up."""
    mask = {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, mask)
    signal.sigtimedwait(mask, 0.05)
