"""Follows the log into a `LoopState`, for the terminal view and the demo."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from deploy.local.loop import LoopState
from ingest.errors import IngestError
from ingest.kafka.consumer import EARLIEST, END, RecordConsumer
from ingest.kafka.settings import KafkaSettings
from schemas.topics import COMPLETIONS, POLICIES, ROLLOUTS, STEPS, TASKS, TELEMETRY, TRAJECTORIES

_SMALL = (STEPS, POLICIES)
_LARGE = (TASKS, ROLLOUTS, COMPLETIONS, TRAJECTORIES, TELEMETRY)
_RETRY_S = 1.0


class LoopMonitor:
    """Reads beside everybody else, in no group. A broker that is away is waited for."""

    def __init__(self, kafka: KafkaSettings, *, from_start: bool) -> None:
        """With `from_start` the counts cover the whole log; else they begin now, and only steps and policies do."""
        self.state = LoopState()
        self._kafka = kafka
        large = EARLIEST if from_start else END
        self._positions = {
            (topic, number): start
            for topics, start in ((_SMALL, EARLIEST), (_LARGE, large))
            for topic in topics
            for number in range(topic.partitions)
        }
        self._changed = asyncio.Event()
        self._task: asyncio.Task | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow(), name="follow the log")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def until(self, condition: Callable[[LoopState], bool], timeout_s: float | None) -> bool:
        """Wait until the state satisfies a condition; False when it does not in time, None for ever."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self.state):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _follow(self) -> None:
        positions = dict(self._positions)
        while True:
            try:
                async with RecordConsumer.assign(self._kafka, positions, write_dead_letters=False) as consumer:
                    while True:
                        for received in await consumer.poll():
                            self.state.observe(received.record, received.at_us / 1e6)
                        positions = {**positions, **consumer.positions()}
                        self._changed.set()
            except IngestError:
                await asyncio.sleep(_RETRY_S)
