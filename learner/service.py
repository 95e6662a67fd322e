"""The learner as a service: trajectories.v1 in; steps.v1, policies.v1, weights and checkpoints out."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from ingest.kafka.consumer import EARLIEST, RecordConsumer
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.service.telemetry import report_gauges
from learner.announcer import Announcer
from learner.checkpoints import Checkpoints, LearnerState
from learner.controller import Controller, MakeBatch, Stores, Trainer
from learner.durable import exclusive
from learner.groups import GroupCollector, GroupRules
from learner.metrics import expose
from learner.policies import PolicyFolders
from learner.recovery import PARTITIONS, check_offsets, check_resumed, new_state, vocabulary_of
from learner.rows import RowRules
from learner.settings import LearnerSettings

TELEMETRY_INTERVAL_S = 1.0


async def run(ctx: ServiceContext, settings: LearnerSettings, kafka: KafkaSettings) -> None:
    """Train until the service stops.

    Raises:
        LearnerError: the run cannot begin or go on; the message says why.
        IngestError: the log cannot be reached, or a newer learner has taken over.
    """
    rows = RowRules(vocabulary_of(settings.model), settings.max_sequence_tokens)
    if settings.shuffle_rewards:
        ctx.log.warning("CONTROL EXPERIMENT: rewards are shuffled, this run cannot learn")
    async with AsyncExitStack() as stack:
        stack.enter_context(exclusive(settings.run_folder))
        thread = stack.enter_context(ThreadPoolExecutor(1, "learner"))
        checkpoints = Checkpoints(settings.run_folder / "checkpoints", settings.checkpoints_kept)
        policies = PolicyFolders(settings.run_folder / "policies", settings.policies_kept)
        announcer = await stack.enter_async_context(Announcer(kafka, settings.run_id, settings.policy_id))
        stores = Stores(checkpoints, policies, announcer)
        trainer, make_batch, state = await _begin(ctx, settings, kafka, stores, thread)
        collector = GroupCollector(_rules(settings, rows, state.first_version), state.collector)
        controller = Controller(ctx, settings, trainer, make_batch, stores, state, collector, thread)
        await controller.publish()
        expose(ctx.registry, controller.gauges)
        positions = {key: state.collector.offsets.get(key[1], EARLIEST) for key in PARTITIONS}
        consumer = await stack.enter_async_context(RecordConsumer.assign(kafka, positions))
        async with _telemetry(ctx, settings, kafka, controller):
            ctx.ready()
            await controller.run(consumer)


async def _begin(
    ctx: ServiceContext,
    settings: LearnerSettings,
    kafka: KafkaSettings,
    stores: Stores,
    thread: ThreadPoolExecutor,
) -> tuple[Trainer, MakeBatch, LearnerState]:
    """The trainer in the state of the newest checkpoint. A new run's first checkpoint is the base model's."""
    announced = await stores.announcer.newest()
    resumed = stores.checkpoints.newest()
    if resumed:
        check_resumed(settings, resumed[1], announced)
        await check_offsets(kafka, settings, resumed[1])
        state = resumed[1]
    else:
        state = await new_state(kafka, settings, announced)
    ctx.log.info("loading", model=str(settings.model), run=settings.run_id, step=state.step, lora=settings.lora_rank)
    loop = asyncio.get_running_loop()
    trainer, make_batch = await loop.run_in_executor(thread, _load, settings)
    if resumed:
        await loop.run_in_executor(thread, trainer.load, resumed[0])
    else:
        await loop.run_in_executor(thread, stores.checkpoints.write, state, trainer.save)
    return trainer, make_batch, state


def _load(settings: LearnerSettings) -> tuple[Trainer, MakeBatch]:
    # imported here: torch and veRL take ten seconds, in which the service must answer /livez
    from learner.advantages import batch_of
    from learner.policy_worker import PolicyWorker

    return PolicyWorker(settings), partial(batch_of, settings=settings)


def _rules(settings: LearnerSettings, rows: RowRules, first_version: int) -> GroupRules:
    return GroupRules(
        policy_id=settings.policy_id,
        rows=rows,
        deadline_us=int(settings.group_deadline_s * 1_000_000),
        keep_partial=settings.partial_groups == "keep",
        max_staleness=settings.max_staleness,
        first_version=first_version,
    )


@asynccontextmanager
async def _telemetry(
    ctx: ServiceContext, settings: LearnerSettings, kafka: KafkaSettings, controller: Controller
) -> AsyncIterator[None]:
    labels = {"run": settings.run_id, "policy": settings.policy_id}
    async with RecordProducer(kafka, "forgestream-learner") as producer:
        report = report_gauges(ctx, producer, controller.telemetry, interval_s=TELEMETRY_INTERVAL_S, labels=labels)
        task = asyncio.create_task(report)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
