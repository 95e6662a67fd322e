"""Runs a demo: start, evaluate, train, evaluate again, drain, report, stop."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from deploy.archive import ask_archive
from deploy.audit import audit_log
from deploy.config import Configuration
from deploy.demo.folder import fresh_folder
from deploy.demo.plan import DemoPlan
from deploy.demo.report import ARCHIVED, Ask, DemoResult, make_result
from deploy.demo.tasks import DemoTasks, make_tasks
from deploy.demo.tell import Teller
from deploy.errors import DeployError
from deploy.local.guard import end_hard, guarded, stop_signals
from deploy.local.loop import RECENT_REWARDS, LoopState
from deploy.local.monitor import LoopMonitor
from deploy.local.stack import Stack
from deploy.local.up import UpOptions, plan_stack
from deploy.models import model_folder
from rollouts.tasksets.produce import produce_tasks
from schemas import Task

AHEAD_GROUPS = 1
"""Training tasks produced beyond what the staleness gate lets run, so that the launcher never waits for one."""
EVALUATION_TIMEOUT_S = 900.0
ENGINE_TIMEOUT_S = 120.0
DRAIN_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 60.0


class DemoStalled(DeployError):
    """A phase of the demo did not end in its time."""


async def run_demo(configuration: Configuration, plan: DemoPlan, teller: Teller) -> DemoResult:
    """Run it on a fresh folder below the state folder.

    Raises:
        Interrupted: a signal came; everything has stopped.
        ForgestreamError: it could not be run to its end.
    """
    began = time.monotonic()
    folder = configuration.settings.state / "demo"
    model = model_folder(plan.model).resolve()
    fresh_folder(folder)
    own = configuration.set(f"state={folder}", *plan.assignments(model))
    stack = Stack(plan_stack(own, UpOptions(free_ports=True)), teller.service_event)
    with stop_signals(end_hard(stack)) as stopping:
        async with stack:
            demo = _Demo(stack, plan, own, model, teller)
            result = await guarded(stack, stopping, demo.run())
            if plan.options.keep_running:
                teller.result(result)
                teller.say(f"the stack keeps running: Ctrl-C, or `forgestream down --state {folder}`, stops it")
                await asyncio.wait({stopping, stack.failed}, return_when=asyncio.FIRST_COMPLETED)
            with demo.phase("stop"):
                await stack.stop()
    return result.with_walls({**demo.wall_s, "total": round(time.monotonic() - began, 1)})


class _Demo:
    def __init__(self, stack: Stack, plan: DemoPlan, configuration: Configuration, model: Path, teller: Teller) -> None:
        self.wall_s: dict[str, float] = {}
        self._stack = stack
        self._plan = plan
        self._configuration = configuration
        self._model = model
        self._teller = teller
        self._produced = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.wall_s[name] = round(time.monotonic() - began, 1)

    async def run(self) -> DemoResult:
        """All phases up to the report; the stack still runs at the end."""
        say, plan = self._teller.say, self._plan
        with self.phase("start"):
            say(f"starting the stack: model {plan.model}, engine {plan.options.engine}, harness {plan.options.harness}")
            _, tasks = await asyncio.gather(self._stack.start(), make_tasks(plan, self._model))
        async with LoopMonitor(self._stack.kafka, from_start=True) as monitor:
            with self.phase("evaluate_before"):
                say(f"evaluating version 0 on {plan.questions} held-out questions, {plan.samples} samples each")
                await self._evaluate(monitor, tasks.before)
            with self.phase("train"):
                say(f"training: {plan.steps} steps of {plan.groups_per_step}×{plan.template.group_size} rollouts")
                await self._train(monitor, tasks)
            with self.phase("evaluate_after"):
                say(f"evaluating version {monitor.state.policy_version} on the same questions")
                await self._evaluate(monitor, tasks.after)
            with self.phase("drain"):
                result = await self._drain(monitor)
        return result

    async def _evaluate(self, monitor: LoopMonitor, tasks: Sequence[Task]) -> None:
        await self._until(
            monitor, self._serves_newest, ENGINE_TIMEOUT_S, "the engine does not serve the newest policy version"
        )
        wanted = monitor.state.groups_finished["evaluation"] + len(tasks)
        await produce_tasks(self._stack.kafka, tasks)
        await self._until(
            monitor,
            lambda state: state.groups_finished["evaluation"] >= wanted,
            EVALUATION_TIMEOUT_S,
            "evaluation rollouts did not finish",
        )

    async def _train(self, monitor: LoopMonitor, tasks: DemoTasks) -> None:
        feeding = asyncio.create_task(self._feed(monitor, tasks.training))
        telling = asyncio.create_task(self._tell_steps(monitor))
        try:
            await self._until(
                monitor,
                lambda state: _step(state) >= self._plan.steps or self._solved(state) or feeding.done(),
                self._plan.train_timeout_s,
                f"{self._plan.steps} optimizer steps did not happen",
            )
            if self._solved(monitor.state):
                self._teller.say(
                    f"the newest {RECENT_REWARDS} training rollouts earn {self._plan.solved_at:g} and more"
                )
            feeding.cancel()
            await self._settle(monitor)
        finally:
            feeding.cancel()
            telling.cancel()
            await asyncio.wait({feeding, telling})

    def _solved(self, state: LoopState) -> bool:
        rewards, wanted = state.rewards, self._plan.solved_at
        full = len(rewards) == RECENT_REWARDS and _step(state) >= self._plan.least_steps
        return wanted is not None and full and sum(rewards) / len(rewards) >= wanted

    async def _settle(self, monitor: LoopMonitor) -> None:
        """Tasks that are on the log are run to their end, and the learner takes its last step, if it can, before the
        final evaluation: so all of it is of one version."""
        await self._until(
            monitor,
            lambda state: state.groups_finished["training"] >= self._produced,
            EVALUATION_TIMEOUT_S,
            "the last training rollouts did not finish",
        )
        # without a verdict when a group stays incomplete: then it is the learner's deadline that ends it
        await monitor.until(self._learner_rests, SETTLE_TIMEOUT_S)

    def _learner_rests(self, state: LoopState) -> bool:
        waiting = state.gauge("learner", "groups_ready") or 0.0
        consumed = state.gauge("learner", "groups_consumed") or 0.0
        return waiting < self._plan.groups_per_step and consumed + waiting >= self._produced

    async def _feed(self, monitor: LoopMonitor, tasks: Sequence[Task]) -> None:
        """Keep the launcher supplied, and no more than that: what is on the log will be run."""
        ahead, batch = self._plan.groups_in_flight + AHEAD_GROUPS, self._plan.groups_per_step
        while self._produced < len(tasks):
            await monitor.until(lambda state: self._produced - state.groups_finished["training"] < ahead, None)
            sending = tasks[self._produced : self._produced + batch]
            self._produced += len(sending)
            await asyncio.shield(produce_tasks(self._stack.kafka, sending))
        await monitor.until(lambda state: state.groups_finished["training"] >= self._produced, None)

    async def _tell_steps(self, monitor: LoopMonitor) -> None:
        for number in range(1, self._plan.steps + 1):
            await monitor.until(lambda state, number=number: _step(state) >= number, None)
            step = next((step for step in monitor.state.steps if step.step == number), None)
            if step:
                self._teller.step(step, monitor.state.groups_finished["training"])

    async def _drain(self, monitor: LoopMonitor) -> DemoResult:
        """Wait until every finished rollout is assembled and archived, then compare the topics and ask the archive."""
        await self._until(
            monitor,
            lambda state: state.trajectories >= state.rollouts_finished,
            DRAIN_TIMEOUT_S,
            "the assembler did not catch up",
        )
        audit = await audit_log(self._stack.kafka)
        settings = self._configuration.settings
        ask = partial(ask_archive, settings.archiver.root)
        wanted = {"trajectories": monitor.state.trajectories, "steps": len(monitor.state.steps)}
        await self._archived(ask, wanted)
        return await asyncio.to_thread(
            make_result, self._plan, settings.state, monitor.state, audit, ask, self._stack.ready_s
        )

    async def _archived(self, ask: Ask, wanted: Mapping[str, int]) -> None:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while (found := (await asyncio.to_thread(ask, ARCHIVED))[0]) != wanted:
            if time.monotonic() > deadline:
                raise DemoStalled(f"the archive did not catch up within {DRAIN_TIMEOUT_S:.0f} s: {found}, not {wanted}")
            await asyncio.sleep(0.5)

    async def _until(
        self, monitor: LoopMonitor, condition: Callable[[LoopState], bool], timeout_s: float, otherwise: str
    ) -> None:
        if not await monitor.until(condition, timeout_s):
            logs = self._configuration.settings.state / "logs"
            raise DemoStalled(
                f"{otherwise} within {timeout_s:.0f} s: {monitor.state.snapshot(time.time())}; see {logs}"
            )

    def _serves_newest(self, state: LoopState) -> bool:
        version = state.policy_version
        return version is not None and (state.gauge("engine", "policy_version") or 0.0) >= version


def _step(state: LoopState) -> int:
    return state.steps[-1].step if state.steps else 0
