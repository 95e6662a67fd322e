"""Runs learners that can be killed: imports torch and veRL once, then forks one process for each life.

Reads one JSON object a line: {"settings": …, "kafka": …, "crash": {"at": POINT, "step": N} | null, "log": FILE}.
Answers {"pid": …} at once, and {"status": …} when that learner has ended.
"""

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import learner.policy_worker
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import Transaction
from ingest.service.runner import run_service
from learner import service
from learner.announcer import Announcer
from learner.checkpoints import Checkpoints
from learner.policies import PolicyFolders
from learner.settings import LearnerSettings
from schemas import Policy, Record


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(at: str, step: int) -> None:
    """Make this process kill itself at a point of step `step`. Versions equal steps: these runs begin at version 0."""
    owner, name, chosen, before = {
        "checkpoint": (Checkpoints, "write", lambda args: args[0].step == step, True),
        "checkpoint written": (Checkpoints, "write", lambda args: args[0].step == step, False),
        "weights": (PolicyFolders, "ensure", lambda args: args[0] == step, True),
        "weights written": (PolicyFolders, "ensure", lambda args: args[0] == step, False),
        "transaction": (
            Transaction,
            "send",
            lambda args: isinstance(args[1], Policy) and args[1].version == step,
            False,
        ),
        "announced": (Announcer, "announce", lambda args: args[0].version == step, False),
    }[at]
    original = getattr(owner, name)

    def wrapped(self: Any, *args: Any) -> Any:
        if before and chosen(args):
            die()
        result = original(self, *args)
        if not chosen(args):
            return result
        if at == "announced":
            return _then_die(result)
        die()

    setattr(owner, name, wrapped)


def is_version(record: Record, version: int) -> bool:
    return isinstance(record, Policy) and record.version == version


async def _then_die(result: Any) -> None:
    await result
    die()


def saving(at: str, step: int) -> None:
    """Die in the middle of writing a checkpoint: one file is there, the others are not."""
    original = learner.policy_worker.PolicyWorker.save

    def wrapped(self: Any, folder: Path) -> None:
        if folder.name == f".step-{step:08d}.partial":
            (folder / "half").write_bytes(b"half a file")
            die()
        original(self, folder)

    learner.policy_worker.PolicyWorker.save = wrapped  # type: ignore[method-assign]


def live(order: dict[str, Any]) -> int:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    os.dup2(log, 1)
    if crash := order["crash"]:
        (saving if crash["at"] == "saving" else arm)(**crash)
    settings, kafka = LearnerSettings(**order["settings"]), KafkaSettings(**order["kafka"])
    return run_service("learner", partial(service.run, settings=settings, kafka=kafka), settings)


def main() -> None:
    print(json.dumps({"pid": os.getpid()}), flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(live(json.loads(line)))
        print(json.dumps({"pid": child}), flush=True)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    main()
