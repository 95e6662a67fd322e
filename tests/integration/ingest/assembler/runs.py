"""Writes rollouts to a real broker, and runs assemblers on it."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from ingest.assembler.service import run
from ingest.assembler.settings import AssemblerSettings
from ingest.kafka.consumer import read_all
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from schemas import RolloutEvent, RolloutEventKind, Trajectory
from schemas.topics import COMPLETIONS, ROLLOUTS, TRAJECTORIES
from tests.unit.ingest.assembler.worlds import Turn, finished

ROOT = Path(__file__).parents[4]
CHILD = """
import json, sys
from ingest.assembler.service import run
from ingest.assembler.settings import AssemblerSettings
from ingest.kafka.settings import KafkaSettings
from ingest.service.runner import run_service
settings = AssemblerSettings(**json.loads(sys.argv[1]))
kafka = KafkaSettings(**json.loads(sys.argv[2]))
sys.exit(run_service("assembler", lambda ctx: run(ctx, settings, kafka), settings))
"""


async def write_rollout(
    producer: RecordProducer, name: str, turns: int = 3, *, pause_s: float = 0.0, **event: object
) -> list[Turn]:
    """One rollout as launcher and proxy record it, with a pause after each turn; its turns."""
    token, parent, made, end = iter(range(1, 1_000_000)), None, [], 0
    await producer.send(ROLLOUTS, RolloutEvent(rollout_id=name, kind=RolloutEventKind.STARTED))
    for number in range(turns):
        parent = Turn(f"{name}-{number}", parent, [next(token), next(token)], [next(token) for _ in range(4)])
        made.append(parent)
        delivery = await producer.send(COMPLETIONS, parent.recorded(name))
        end = delivery.offset + 1
        await asyncio.sleep(pause_s)
    last = finished(
        name, **{"completions_end_offset": end, "completion_count": turns, "group_id": f"g-{name}", **event}
    )
    await producer.send(ROLLOUTS, last)
    return made


def context() -> ServiceContext:
    """What a service is handed."""
    return ServiceContext("assembler", structlog.get_logger(), CollectorRegistry(), asyncio.Event())


@asynccontextmanager
async def assembling(kafka: KafkaSettings, **settings: object) -> AsyncIterator[ServiceContext]:
    """An assembler in this process, which must end well."""
    ctx = context()
    task = asyncio.create_task(run(ctx, AssemblerSettings.model_validate({"port": 0, **settings}), kafka))
    try:
        yield ctx
    finally:
        ctx.stopping.set()
        await asyncio.wait_for(task, 30)


class Child:
    """An assembler in a process of its own."""

    def __init__(self, kafka: KafkaSettings, log: Path, **settings: object) -> None:
        arguments = [json.dumps({"port": 0, **settings}), kafka.model_dump_json()]
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments],
            cwd=ROOT,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(10)
        self._log.close()

    def stop(self) -> int:
        """SIGTERM; the exit status."""
        self.process.terminate()
        status = self.process.wait(40)
        self._log.close()
        return status


async def trajectories(kafka: KafkaSettings) -> list[Trajectory]:
    """All that is committed now."""
    return [received.record for received in await read_all(kafka, TRAJECTORIES)]


async def until(
    kafka: KafkaSettings, enough: Callable[[list[Trajectory]], bool], timeout_s: float = 60
) -> list[Trajectory]:
    """The trajectories, once they are enough."""
    async with asyncio.timeout(timeout_s):
        while True:
            if enough(found := await trajectories(kafka)):
                return found
            await asyncio.sleep(0.05)


def times(found: list[Trajectory]) -> Counter[str]:
    """How often each rollout is there."""
    return Counter(trajectory.rollout_id for trajectory in found)
