"""The whole system on one machine: the broker, the topics, and every service as a child process."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.config import Configuration, Settings
from deploy.errors import StackFailed
from deploy.local.kafka import EmbeddedBroker, find_running, stop_running
from deploy.local.kafka.errors import BrokerDied
from deploy.local.processes import kill_all, marked_environment, marked_processes
from deploy.local.statefile import RunningService, RunningStack, hold_state, write_stack
from deploy.local.supervisor import BACKOFF_S, HEALTHY_S, MAX_FAILURES, ServiceSpec, StackEvent, Supervisor
from ingest.kafka.admin import ensure_topics
from ingest.kafka.settings import KafkaSettings
from ingest.service.settings import ServiceSettings
from schemas import ForgestreamError

LIGHT = ("archiver", "assembler", "proxy", "launcher")
HEAVY = ("engine", "learner")
"""These import torch; the stack is of use to look at before they are ready."""
STOP_STAGES = (("launcher",), ("proxy", "engine", "learner"), ("assembler",), ("archiver",))
"""Whoever makes work stops first; the archiver last, so that it has seen everything."""
READY_TIMEOUT_S = {"engine": 900.0, "learner": 300.0}
KAFKA_CACHE = Path(".forgestream/kafka")
"""The broker's jars, shared by all state folders."""
_BROKER = "broker"


@dataclass(frozen=True)
class StackPlan:
    """What to run."""

    configuration: Configuration
    services: Sequence[str] = (*LIGHT, *HEAVY)

    @property
    def settings(self) -> Settings:
        """The resolved settings of all services."""
        return self.configuration.settings


class Stack:
    """A running system; leaving the `async with` block stops it, whatever happened.

    `failed` is set when it cannot go on. `ready_s` has the seconds from the start until each part was ready.
    """

    def __init__(self, plan: StackPlan, on_event: Callable[[StackEvent], None] = lambda event: None) -> None:
        self.ready_s: dict[str, float] = {}
        self._plan = plan
        self._on_event = on_event
        self._began = time.monotonic()
        self._exits = ExitStack()
        self._description: RunningStack | None = None
        self._broker: EmbeddedBroker | None = None
        self._broker_keeper: asyncio.Task | None = None
        self._bootstrap = plan.settings.kafka.bootstrap_servers
        self._supervisor = Supervisor(self._observe)

    @property
    def kafka(self) -> KafkaSettings:
        """How to reach the log of this stack."""
        return self._plan.settings.kafka.model_copy(update={"bootstrap_servers": self._bootstrap})

    @property
    def failed(self) -> asyncio.Future[StackFailed]:
        """Done when the stack cannot go on; its result says why."""
        return self._supervisor.failed

    def services(self) -> list[dict[str, object]]:
        """Each service with its pid, readiness and restarts."""
        pids, restarts = self._supervisor.pids, self._supervisor.restarts
        return [
            {"service": name, "pid": pids.get(name), "ready": ready, "restarts": restarts[name]}
            for name, ready in self._supervisor.ready.items()
        ]

    async def __aenter__(self) -> Self:
        self._description = self._exits.enter_context(hold_state(self._plan.settings.state))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            self._exits.close()

    async def start(self) -> None:
        """Start everything and wait until all of it is ready.

        Raises:
            StackFailed: a service does not get ready or its port is taken.
            EmbeddedBrokerError: the broker cannot be had.
            IngestError: the configured brokers do not answer, or their topics do not fit.
        """
        self._began = time.monotonic()
        if not self._bootstrap:
            await self._start_broker()
        await ensure_topics(self.kafka)
        self._ready("topics")
        light = [name for name in LIGHT if name in self._plan.services]
        heavy = [name for name in HEAVY if name in self._plan.services]
        for name in (*light, *heavy):
            self._supervisor.start(self._spec(name))
        await self._supervisor.wait_ready(*light)
        await self._supervisor.wait_ready(*heavy)

    def kill(self) -> None:
        """End everything at once, as a crash of this process would not: for users who cannot wait."""
        kill_all(marked_processes(self._plan.settings.state))
        if self._broker:
            self._broker.kill()

    async def _start_broker(self) -> None:
        home = self._plan.settings.state / "broker"
        if find_running(home):
            await asyncio.to_thread(stop_running, home)  # left by a stack that was killed
        self._broker = EmbeddedBroker(home, cache=KAFKA_CACHE)
        self._bootstrap = await _start(self._broker)
        self._broker_keeper = asyncio.create_task(self._keep_broker(self._broker), name="keep broker")
        self._ready(_BROKER, self._broker.pid or 0)
        self._describe()

    async def _keep_broker(self, broker: EmbeddedBroker) -> None:
        """Start the broker again whenever it ends; its port stays the same, so clients find it."""
        failures, began = 0, time.monotonic()
        while True:
            while broker.poll() is None:  # noqa: ASYNC110 - a process that a thread started cannot be awaited
                await asyncio.sleep(0.2)
            elapsed_s = time.monotonic() - began
            failures = 1 if elapsed_s > HEALTHY_S else failures + 1
            reason = str(broker.failure())
            self._on_event(StackEvent(_BROKER, "crashed", 0, elapsed_s, reason))
            if failures >= MAX_FAILURES:
                self._fail(StackFailed(f"the broker crashed {failures} times in a row, giving up; {reason}"))
                return
            await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S)) - 1])
            began = time.monotonic()
            try:
                await _start(broker)
            except BrokerDied:
                continue
            except ForgestreamError as error:
                self._fail(StackFailed(f"the broker cannot be started again: {error}"))
                return
            self._ready(_BROKER, broker.pid or 0)

    async def stop(self) -> None:
        """Stop everything, work-makers first. Also done by leaving the block; doing it twice does no harm."""
        await self._supervisor.stop(STOP_STAGES)
        if self._broker_keeper:
            self._broker_keeper.cancel()
            await asyncio.wait({self._broker_keeper})
            self._broker_keeper = None
        if self._broker:
            await asyncio.to_thread(self._broker.stop)
            self._broker = None
            self._on_event(StackEvent(_BROKER, "stopped"))

    def _spec(self, name: str) -> ServiceSpec:
        settings = self._plan.settings
        section: ServiceSettings = getattr(settings, name)
        command = [sys.executable, "-m", "deploy.cli", name, *self._plan.configuration.options()]
        command += ["--set", f"kafka.bootstrap_servers={self._bootstrap}", "--parent-pid", str(os.getpid())]
        return ServiceSpec(
            name=name,
            command=command,
            host=section.host,
            port=section.port,
            log=settings.state / "logs" / f"{name}.log",
            environment=_environment(settings.state, name),
            ready_timeout_s=READY_TIMEOUT_S.get(name, 120.0),
        )

    def _observe(self, event: StackEvent) -> None:
        if event.change == "ready":
            self.ready_s.setdefault(event.service, round(time.monotonic() - self._began, 2))
        if event.change in ("started", "ready"):
            self._describe()
        self._on_event(event)

    def _ready(self, name: str, pid: int = 0) -> None:
        elapsed_s = time.monotonic() - self._began
        self.ready_s.setdefault(name, round(elapsed_s, 2))
        self._on_event(StackEvent(name, "ready", pid, elapsed_s))

    def _fail(self, error: StackFailed) -> None:
        if not self.failed.done():
            self.failed.set_result(error)

    def _describe(self) -> None:
        """Tell other commands, through the state folder, what runs where."""
        if self._description is None:
            return
        settings = self._plan.settings
        self._description.bootstrap_servers = self._bootstrap
        self._description.topic_prefix = settings.kafka.topic_prefix
        self._description.services = {
            name: RunningService(
                pid=pid, port=getattr(settings, name).port, log=str(settings.state / "logs" / f"{name}.log")
            )
            for name, pid in self._supervisor.pids.items()
        }
        write_stack(settings.state, self._description)


async def _start(broker: EmbeddedBroker) -> str:
    """Start a broker in a thread. When cancelled, waits for the thread: a JVM that nobody knows of would stay."""
    starting = asyncio.create_task(asyncio.to_thread(broker.start))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        await asyncio.wait({starting})
        raise


def _environment(state: Path, name: str) -> Mapping[str, str]:
    environment = marked_environment(state)
    if name in HEAVY:
        # engine and learner share the machine; more threads than cores make torch many times slower
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 2) // 2)))
    return environment
