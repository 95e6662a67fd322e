"""`forgestream up`: runs a stack until it is told to stop, and shows what it does."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from deploy.config import Configuration
from deploy.errors import ConfigError
from deploy.local.guard import Interrupted, end_hard, guarded, stop_signals
from deploy.local.loop import LoopState
from deploy.local.monitor import LoopMonitor
from deploy.local.processes import free_ports
from deploy.local.report import JsonReporter, Reporter, TerminalReporter
from deploy.local.stack import HEAVY, LIGHT, Stack, StackPlan
from deploy.models import model_folder
from ingest.service.logging import configure_logging


@dataclass(frozen=True)
class UpOptions:
    """What `up` can be told beside settings."""

    engine: str | None = None
    model: str | None = None
    free_ports: bool = False
    without: Sequence[str] = ()


def plan_stack(configuration: Configuration, options: UpOptions) -> StackPlan:
    """What to run. May make a model's folder.

    Raises:
        ConfigError: an unknown service or model.
    """
    services = (*LIGHT, *HEAVY)
    if unknown := sorted(set(options.without) - set(services)):
        raise ConfigError(f"--without {' '.join(unknown)}: no such service; there are {', '.join(services)}")
    assignments: list[str] = []
    if options.engine:
        assignments.append(f"engine.kind={options.engine}")
    if options.model:
        folder = model_folder(options.model).resolve()
        assignments += [f"engine.model={folder}", f"learner.model={folder}"]
    if options.free_ports:
        assignments += [f"{name}.port={port}" for name, port in zip(services, free_ports(len(services)), strict=True)]
    return StackPlan(configuration.set(*assignments), [name for name in services if name not in options.without])


def run_up(configuration: Configuration, options: UpOptions, *, as_json: bool) -> int:
    """Run a stack until SIGINT or SIGTERM; 0 then.

    Raises:
        ForgestreamError: the stack cannot start, or cannot go on.
    """
    configure_logging("up", "error")
    plan = plan_stack(configuration, options)
    terminal = sys.stdout.isatty() and not as_json
    title = f"forgestream · {plan.settings.state}"
    return asyncio.run(_up(plan, TerminalReporter(title) if terminal else JsonReporter()))


async def _up(plan: StackPlan, reporter: Reporter) -> int:
    with reporter:
        stack = Stack(plan, reporter.event)
        with stop_signals(end_hard(stack)) as stopping:
            async with stack:
                try:
                    await guarded(stack, stopping, _run(stack, plan, reporter))
                except Interrupted as end:
                    reporter.note("stopping", reason=str(end))
    return 0


async def _run(stack: Stack, plan: StackPlan, reporter: Reporter) -> None:
    starting = asyncio.create_task(stack.start())
    try:
        while not starting.done():
            reporter.status(LoopState(), stack.services())
            await asyncio.wait({starting}, timeout=reporter.interval_s)
        starting.result()
    finally:
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
    reporter.note("up", ready_s=stack.ready_s, kafka=stack.kafka.bootstrap_servers, state=str(plan.settings.state))
    async with LoopMonitor(stack.kafka, from_start=False) as monitor:
        while True:
            reporter.status(monitor.state, stack.services())
            await asyncio.sleep(reporter.interval_s)
