"""Stops a stack from outside, by what its state folder says."""

import os
import signal
from pathlib import Path

from deploy.errors import NotRunning
from deploy.local.kafka import stop_running
from deploy.local.processes import kill_all, marked_processes, wait_gone
from deploy.local.statefile import read_stack

TIMEOUT_S = 90.0


def stop_stack(state: Path, timeout_s: float = TIMEOUT_S) -> int:
    """Ask the stack to stop and wait; then end by force what is left of it. Returns the supervising pid.

    Raises:
        NotRunning: no stack runs there, and nothing of one was left.
    """
    stack = read_stack(state)
    if stack and stack.alive:
        os.kill(stack.pid, signal.SIGTERM)
        if not wait_gone(stack.pid, stack.created_at_s, timeout_s):
            os.kill(stack.pid, signal.SIGKILL)
    left = kill_all(marked_processes(state))
    broker = stop_running(state / "broker")
    if stack is None and not left and not broker:
        raise NotRunning(f"no stack runs on {state}: `forgestream up` starts one")
    return stack.pid if stack else 0
