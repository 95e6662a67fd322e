"""Names of things. All but completions are derived, so that a restart makes the same name again."""

import hashlib
import re
import time
import uuid

_SAFE = re.compile(r"[^a-z0-9-]+")


def group_id(taskset: str, task_id: str, epoch: int) -> str:
    """The group of one task's rollouts: readable, safe as a Kubernetes label value, at most 52 characters."""
    digest = hashlib.sha256(f"{taskset}\0{task_id}\0{epoch}".encode()).hexdigest()[:10]
    readable = _SAFE.sub("-", task_id.lower()).strip("-")[:36]
    return f"{readable or 'task'}-{epoch}-{digest}"


def rollout_id(group: str, group_index: int) -> str:
    """One rollout of a group."""
    return f"{group}-r{group_index}"


def trajectory_id(rollout: str) -> str:
    """The trajectory of a rollout: there is exactly one."""
    return f"{rollout}-t"


def completion_id() -> str:
    """A fresh name for a completion: 32 plain hex digits that sort by time (RFC 9562, version 7)."""
    millis = time.time_ns() // 1_000_000
    random = uuid.uuid4().int & ((1 << 74) - 1)
    return f"{(millis << 80) | (0x7 << 76) | ((random >> 62) << 64) | (0b10 << 62) | (random & ((1 << 62) - 1)):032x}"


def now_us() -> int:
    """The wall clock in epoch µs."""
    return time.time_ns() // 1_000
