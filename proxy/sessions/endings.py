"""Follows rollouts.v1: when a harness has ended, what was remembered of its rollout goes."""

import asyncio

from structlog.typing import FilteringBoundLogger

from ingest.errors import IngestError, TopicMismatch
from ingest.kafka.consumer import END, RecordConsumer
from ingest.kafka.settings import KafkaSettings
from proxy.sessions.attempts import Attempts
from schemas import RolloutEvent, RolloutEventKind
from schemas.topics import ROLLOUTS

_ENDED = frozenset({RolloutEventKind.HARNESS_EXITED, RolloutEventKind.FINISHED})
_IDLE_CHECK_S = 30.0
_RETRY_S = 2.0


async def follow_endings(
    kafka: KafkaSettings, attempts: Attempts, log: FilteringBoundLogger, following: asyncio.Event
) -> None:
    """Runs until it is cancelled; sets `following` when it has begun.

    Reads from the end of the topic, at every begin: what ended before is not remembered, or soon falls silent. While
    the topic cannot be read, model calls go on and only the memory of ended rollouts stays longer.

    Raises:
        TopicMismatch: the topic does not exist.
    """
    while True:
        try:
            await _follow(kafka, attempts, log, following)
        except TopicMismatch:
            raise
        except IngestError as error:
            log.warning("rollouts.v1 cannot be read, trying again", error=str(error))
            await asyncio.sleep(_RETRY_S)


async def _follow(
    kafka: KafkaSettings, attempts: Attempts, log: FilteringBoundLogger, following: asyncio.Event
) -> None:
    positions = {(ROLLOUTS, partition): END for partition in range(ROLLOUTS.partitions)}
    loop = asyncio.get_running_loop()
    checked_s = loop.time()
    async with RecordConsumer.assign(kafka, positions, write_dead_letters=False) as consumer:
        following.set()
        while True:
            for received in await consumer.poll(timeout_s=1.0):
                event = received.record
                if isinstance(event, RolloutEvent) and event.kind in _ENDED:
                    attempts.seal(event.rollout_id, event.attempt)
            if loop.time() - checked_s > _IDLE_CHECK_S:
                checked_s = loop.time()
                if count := attempts.drop_idle():
                    log.info("silent rollouts forgotten", count=count)
