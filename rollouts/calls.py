"""Watches completions.v1 for the rollouts that run here: whether, when and how often they called the model.

The proxy has a completion in the log before the harness has its last byte. So once the harness has ended, all its
completions lie below the end offset of its partition, and counting them up to there is exact.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from ingest.errors import BrokerUnavailable
from ingest.kafka.consumer import END, RecordConsumer, TopicPartition
from ingest.kafka.partitions import partition_of
from ingest.kafka.settings import KafkaSettings
from schemas import Completion, CompletionStatus, FinishReason
from schemas.topics import COMPLETIONS

_log = structlog.get_logger(__name__)

_RETRY_S = 1.0
_PARTITIONS = [(COMPLETIONS, number) for number in range(COMPLETIONS.partitions)]


@dataclass
class CallLog:
    """The model calls of one rollout attempt, as far as they were seen."""

    seen: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with the first one."""
    count: int = 0
    first_at_us: int | None = None
    last_finish: str = ""
    """Finish reason of the newest delivered completion."""
    last_error: str = ""
    """Error of the newest completion, if it failed."""

    def add(self, completion: Completion) -> None:
        """Take one in."""
        self.count += 1
        received_at = completion.timings.received_at_us
        if self.first_at_us is None or received_at < self.first_at_us:
            self.first_at_us = received_at
        failed = completion.status is CompletionStatus.FAILED
        self.last_error = (completion.error or "failed") if failed else ""
        if completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS):
            self.last_finish = completion.finish_reason.value
        self.seen.set()


class CallTail:
    """Follows completions.v1 from its end."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._logs: dict[tuple[str, int], CallLog] = {}
        self._consumer = RecordConsumer.assign(kafka, dict.fromkeys(_PARTITIONS, END))
        self._moved = asyncio.Condition()
        self._asking = asyncio.Lock()
        self._next_answer: asyncio.Task[dict[TopicPartition, int]] | None = None

    async def start(self) -> None:
        """Take the position: what is written from now on is seen."""
        await self._consumer.start()

    async def close(self) -> None:
        """Stop reading."""
        await self._consumer.close()

    async def follow(self) -> None:
        """Read on until cancelled."""
        while True:
            for received in await self._consumer.poll(timeout_s=1.0):
                completion: Completion = received.record
                if log := self._logs.get((completion.rollout_id, completion.attempt)):
                    log.add(completion)
            async with self._moved:
                self._moved.notify_all()

    @contextmanager
    def watch(self, rollout_id: str, attempt: int) -> Iterator[CallLog]:
        """The calls of an attempt, for the length of the block; it begins before the harness is started."""
        log = self._logs[rollout_id, attempt] = CallLog()
        try:
            yield log
        finally:
            del self._logs[rollout_id, attempt]

    async def end_offset(self, rollout_id: str) -> int:
        """The end offset of a rollout's partition, asked for after this call was made."""
        if self._next_answer is None:
            self._next_answer = asyncio.create_task(self._ask())
        ends = await asyncio.shield(self._next_answer)
        return ends[self._partition(rollout_id)]

    async def reached(self, rollout_id: str, offset: int, *, timeout_s: float) -> bool:
        """Wait until all completions below an offset of a rollout's partition were taken in; False: not in time."""
        partition = self._partition(rollout_id)

        def done() -> bool:
            return self._consumer.positions()[partition] >= offset

        try:
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(done)
        except TimeoutError:
            return False
        return True

    async def _ask(self) -> dict[TopicPartition, int]:
        async with self._asking:  # one question at a time; whoever comes meanwhile shares the answer to the next
            self._next_answer = None
            while True:
                try:
                    return await self._consumer.end_offsets(_PARTITIONS)
                except BrokerUnavailable as error:  # a rollout's end can wait for the broker's return
                    _log.warning("end offsets not known yet", why=str(error))
                    await asyncio.sleep(_RETRY_S)

    @staticmethod
    def _partition(rollout_id: str) -> TopicPartition:
        return COMPLETIONS, partition_of(rollout_id, COMPLETIONS.partitions)
