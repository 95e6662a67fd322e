"""Learners as processes, fed with made-up groups through a real broker."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

from ingest.kafka.consumer import read_all
from ingest.kafka.partitions import partition_of
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from learner.rows import Row
from learner.settings import LearnerSettings
from schemas import Policy, Sample, Step, Trajectory, VersionRun
from schemas.arrays import pack_floats, pack_ids, pack_mask
from schemas.topics import POLICIES, STEPS, TRAJECTORIES

ROOT = Path(__file__).parents[3]
PATIENCE_S = 90.0


@dataclass
class Life:
    """One learner process."""

    pid: int
    answers: "Queue[dict[str, Any]]"
    ended: int | None = field(default=None)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end, as a supervisor would; its exit status."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        if self.ended is None:
            self.ended = self.answers.get(timeout=timeout_s)["status"]
        return self.ended


class Zygote:
    """The process that learners are forked from."""

    def __init__(self) -> None:
        env = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(Path(__file__).with_name("zygote.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
        )
        self._answers: Queue[dict[str, Any]] = Queue()
        self._life: Life | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        if "pid" not in self._answers.get(timeout=PATIENCE_S):
            self.close()
            raise AssertionError("the zygote did not start")

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put({"status": -1})  # it ended; nobody shall wait for an answer

    def start(
        self, settings: LearnerSettings, kafka: KafkaSettings, log: Path, *, crash: tuple[str, int] | None = None
    ) -> Life:
        order = {
            "settings": settings.model_dump(mode="json"),
            "kafka": kafka.model_dump(mode="json"),
            "crash": crash and {"at": crash[0], "step": crash[1]},
            "log": str(log),
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._life = Life(self._answers.get(timeout=PATIENCE_S)["pid"], self._answers)
        return self._life

    def close(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        if self._life is not None and self._life.ended is None:
            with suppress(ProcessLookupError):
                self._life.kill()  # a test failed half-way
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._process.stdout.close()


def member(
    group: str, index: int, reward: float | None, rows: Sequence[Row], *, size: int, version: int = 0, **more: Any
) -> Trajectory:
    """A trajectory that was sampled as the rows say."""
    samples = [
        Sample(
            branch=branch,
            token_ids=pack_ids(row.token_ids),
            loss_mask=pack_mask(row.loss_mask),
            rollout_logprobs=pack_floats(row.logprobs),
            policy_version_runs=[VersionRun(version=version, start=row.prompt_length, end=len(row.token_ids))],
        )
        for branch, row in enumerate(rows)
    ]
    fields = {"trainable": True, "policy_id": "policy", "policy_version_min": version, "policy_version_max": version}
    return Trajectory(
        trajectory_id=f"{group}-r{index}-t",
        rollout_id=f"{group}-r{index}",
        group_id=group,
        group_size=size,
        group_index=index,
        reward=reward,
        samples=samples,
        **(fields | more),
    )


def in_one_partition(count: int, name: str = "g") -> list[str]:
    """Group names that all lie in one partition, so that their order in the log is one order."""
    found = (f"{name}{number}" for number in range(10_000))
    return [group for group in found if partition_of(group, TRAJECTORIES.partitions) == 0][:count]


async def produce(kafka: KafkaSettings, trajectories: Sequence[Trajectory]) -> None:
    async with RecordProducer(kafka, "test") as producer:
        for one in trajectories:
            await producer.send(TRAJECTORIES, one)


async def steps(kafka: KafkaSettings) -> list[Step]:
    return [one.record for one in await read_all(kafka, STEPS)]


async def policies(kafka: KafkaSettings) -> list[Policy]:
    return [one.record for one in await read_all(kafka, POLICIES)]


async def until(
    condition: Callable[[], Any], what: str, life: Life | None = None, timeout_s: float = PATIENCE_S
) -> Any:
    """Wait for a condition (or an awaitable one) to hold; its value."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        value = condition()
        value = await value if asyncio.iscoroutine(value) else value
        if value:
            return value
        if life is not None and not life.answers.empty():
            raise AssertionError(f"the learner ended with {life.wait()} while waiting for: {what}")
        await asyncio.sleep(0.1)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")
