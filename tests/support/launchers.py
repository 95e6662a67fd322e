"""Runs launchers for tests, in this process or as one of its own, and reads what they told."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from ingest.kafka.consumer import read_all
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.settings import AuthSettings
from rollouts.service import run
from rollouts.settings import LauncherSettings
from rollouts.tasksets.produce import produce_tasks
from schemas import Harness, Limits, RolloutEvent, RolloutEventKind, Task, Verifier
from schemas.topics import ROLLOUTS

SECRET = "a secret of thirty-two characters"
ROOT = Path(__file__).parents[2]


def exact_task(task_id: str, expected: str, *, options: dict[str, Any] | None = None, **changes: Any) -> Task:
    """A task of the react harness; without `options` one plain question."""
    return Task(
        **{
            "task_id": task_id,
            "taskset": "tests",
            "instruction": f"Say {expected}.",
            "harness": Harness(name="react", options=json.dumps({"tools": []} if options is None else options)),
            "verifier": Verifier(kind="exact", options=json.dumps({"expected": expected})),
            "group_size": 2,
            "limits": Limits(wall_s=60, startup_s=30),
            **changes,
        }
    )


@asynccontextmanager
async def launcher(kafka: KafkaSettings, state: Path, proxy_url: str, **changes: Any) -> AsyncIterator[ServiceContext]:
    """A launcher in this process, ready when the block begins, stopped when it ends."""
    settings = LauncherSettings(
        state_dir=state,
        proxy_url=proxy_url,
        **{"retry_backoff_s": 0.05, "kill_grace_s": 0.5, "groups_in_flight": 0, **changes},
    )
    ctx = ServiceContext("launcher", structlog.get_logger(), CollectorRegistry(), asyncio.Event())
    running = asyncio.create_task(run(ctx, settings, kafka, AuthSettings(secret=SecretStr(SECRET))))
    try:
        await until(lambda: ctx.is_ready or running.done(), timeout_s=60)
        yield ctx
    finally:
        ctx.stopping.set()
        await asyncio.wait_for(running, 30)


class LauncherProcess:
    """A launcher as a process of its own, to be killed."""

    def __init__(self, kafka: KafkaSettings, state: Path, proxy_url: str, log: Path, **changes: Any) -> None:
        given = {"kafka": kafka.model_dump(), "state": str(state), "proxy_url": proxy_url, "changes": changes}
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(given)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._process.pid

    async def end(self, number: signal.Signals) -> int:
        """Signal it and wait for its end."""
        self._process.send_signal(number)
        return await asyncio.to_thread(self._process.wait, 60)

    def close(self) -> None:
        """Kill it, if it still runs."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()


async def finished(
    kafka: KafkaSettings, tasks: Iterable[Task], *, timeout_s: float = 60.0
) -> dict[str, list[RolloutEvent]]:
    """Waits until all rollouts of the tasks are finished; all events by rollout, in order."""
    wanted = sum(task.group_size for task in tasks)
    async with asyncio.timeout(timeout_s):
        while True:
            events = await events_by_rollout(kafka)
            if sum(event.kind is RolloutEventKind.FINISHED for told in events.values() for event in told) >= wanted:
                return events
            await asyncio.sleep(0.1)


async def events_by_rollout(kafka: KafkaSettings) -> dict[str, list[RolloutEvent]]:
    """All events of the log, by rollout, in order."""
    found: dict[str, list[RolloutEvent]] = defaultdict(list)
    for received in await read_all(kafka, ROLLOUTS):
        found[received.record.rollout_id].append(received.record)
    return found


async def until(condition: Callable[[], object], *, timeout_s: float) -> None:
    """Waits for something that tells nobody when it happens."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def produce(kafka: KafkaSettings, tasks: list[Task]) -> list[Task]:
    """Writes tasks; hands them back."""
    await produce_tasks(kafka, tasks)
    return tasks


def processes_with(text: str) -> list[str]:
    """Command lines of living processes that have `text` in their environment or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if text.encode() in command or text.encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {command.decode(errors='replace')}")
    return found


def _main() -> int:
    from ingest.service.runner import run_service

    given = json.loads(sys.argv[1])
    settings = LauncherSettings(
        state_dir=Path(given["state"]), proxy_url=given["proxy_url"], port=0, **given["changes"]
    )
    kafka, auth = KafkaSettings(**given["kafka"]), AuthSettings(secret=SecretStr(SECRET))
    return run_service("launcher", lambda ctx: run(ctx, settings, kafka, auth), settings)


if __name__ == "__main__":
    raise SystemExit(_main())
