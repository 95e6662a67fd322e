"""The launcher as a service: joins Kafka, runtime, verifiers and gate, and runs until it is asked to stop."""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from ingest.kafka.consumer import END, RecordConsumer
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.service.telemetry import report_gauges
from ingest.settings import AuthSettings
from rollouts.attempt import AttemptRunner
from rollouts.calls import CallTail
from rollouts.errors import RolloutsError
from rollouts.gate import StalenessGate
from rollouts.intake import TaskIntake
from rollouts.launcher import Launcher
from rollouts.ledger import TaskLedger
from rollouts.metrics import LauncherMetrics
from rollouts.runtimes.local import LocalLimits, LocalRuntime
from rollouts.settings import LauncherSettings
from rollouts.teller import EventTeller
from rollouts.verifiers import verifiers
from rollouts.verifiers.gym_client import GymWorker
from schemas import Telemetry
from schemas.topics import TELEMETRY

LEARNER = "learner"
_TELEMETRY = {(TELEMETRY, number): END for number in range(TELEMETRY.partitions)}


async def run(ctx: ServiceContext, settings: LauncherSettings, kafka: KafkaSettings, auth: AuthSettings) -> None:
    """Launch rollouts until `ctx.stopping`. What runs then is ended at once, and runs again at the next start.

    Raises:
        StateInUse: another launcher works in the same state folder.
        IngestError: Kafka is out of reach.
    """
    secret = auth.secret.get_secret_value()
    if not secret:
        raise RolloutsError("auth.secret is empty: set FORGESTREAM_AUTH__SECRET, the same for launcher and proxy")
    try:
        async with _parts(ctx, settings, kafka, secret) as parts:
            ctx.ready()
            await _work(ctx, settings, parts)
    except ExceptionGroup as group:  # of the task group: the first failure ended the others
        raise group.exceptions[0] from group


async def _work(ctx: ServiceContext, settings: LauncherSettings, parts: "_Parts") -> None:
    async with asyncio.TaskGroup() as group:
        jobs = [
            group.create_task(parts.launcher.dispatch(group.create_task)),
            group.create_task(parts.intake.read()),
            group.create_task(parts.intake.commit_done()),
            group.create_task(parts.calls.follow()),
            group.create_task(parts.teller.failed()),
            group.create_task(_listen(parts.telemetry, parts.gate, parts.instance)),
            group.create_task(parts.report(ctx, settings)),
        ]
        await ctx.stopping.wait()
        for job in jobs:
            job.cancel()
        await parts.launcher.stop()


@dataclass
class _Parts:
    producer: RecordProducer
    teller: EventTeller
    calls: CallTail
    telemetry: RecordConsumer
    gate: StalenessGate
    launcher: Launcher
    intake: TaskIntake
    metrics: LauncherMetrics
    instance: str

    async def report(self, ctx: ServiceContext, settings: LauncherSettings) -> None:
        """Tell the launcher's gauges to telemetry.v1 and to Prometheus."""
        labels = {"instance": self.instance}
        await report_gauges(ctx, self.producer, self._gauges, interval_s=settings.telemetry_s, labels=labels)

    def _gauges(self) -> dict[str, float]:
        counts = self.launcher.counts()
        in_flight = self.gate.in_flight(time.monotonic())
        self.metrics.running.set(counts.running)
        self.metrics.queued.set(counts.queued)
        self.metrics.groups.set(counts.groups_outstanding)
        self.metrics.in_flight.set(in_flight)
        return {
            "rollouts_running": counts.running,
            "rollouts_queued": counts.queued,
            "groups_outstanding": counts.groups_outstanding,
            "groups_in_flight": in_flight,
            "groups_launched": self.launcher.launched(),
        }


@asynccontextmanager
async def _parts(
    ctx: ServiceContext, settings: LauncherSettings, kafka: KafkaSettings, secret: str
) -> AsyncIterator[_Parts]:
    """Everything started, in the order in which it must be, and stopped in the reverse one."""
    runtime = LocalRuntime(
        settings.state_dir,
        settings.harnesses,
        LocalLimits(settings.output_limit_bytes, settings.workspace_limit_bytes, settings.kill_grace_s),
    )
    gym = GymWorker(env=runtime.mark)
    calls = CallTail(kafka)
    telemetry = RecordConsumer.assign(kafka, _TELEMETRY)
    gate = StalenessGate(settings.groups_in_flight, settings.learner_grace_s, settings.gate_stall_s)
    ledger = TaskLedger()
    metrics = LauncherMetrics(ctx.registry)
    async with AsyncExitStack() as stack:
        await runtime.start()
        stack.push_async_callback(runtime.close)
        stack.push_async_callback(gym.close)
        producer = await stack.enter_async_context(RecordProducer(kafka, "launcher"))
        teller = EventTeller(producer)
        attempts = AttemptRunner(
            runtime,
            verifiers(runtime, gym, settings.verifier_timeout_s),
            calls,
            teller,
            proxy_url=settings.proxy_url,
            secret=secret,
            harnesses=settings.harnesses.resolve(),
        )
        launcher = Launcher(settings, attempts, runtime, ledger, gate, teller, calls, metrics)
        await calls.start()
        stack.push_async_callback(calls.close)
        await stack.enter_async_context(telemetry)
        intake = TaskIntake(kafka, launcher, ledger, teller, ctx.log)
        await intake.start()
        stack.push_async_callback(intake.close)
        instance = f"{socket.gethostname()}-{os.getpid()}"
        yield _Parts(producer, teller, calls, telemetry, gate, launcher, intake, metrics, instance)


async def _listen(telemetry: RecordConsumer, gate: StalenessGate, instance: str) -> None:
    """Tell the gate what learner and other launchers say of themselves."""
    while True:
        for received in await telemetry.poll(timeout_s=1.0):
            said: Telemetry = received.record
            now = time.monotonic()
            other = said.labels.get("instance", "")
            if said.source == LEARNER and "groups_consumed" in said.gauges:
                gate.learner_says(said.gauges["groups_consumed"], now)
            elif "groups_launched" in said.gauges and other != instance:
                gate.launcher_says(other, said.gauges["groups_launched"], now)
