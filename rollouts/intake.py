"""Reads tasks.v1 for the launcher, and commits what is done."""

import asyncio
from collections.abc import Mapping

from structlog.typing import FilteringBoundLogger

from ingest.errors import IngestError
from ingest.kafka.consumer import RecordConsumer, TopicPartition
from ingest.kafka.received import Received
from ingest.kafka.settings import KafkaSettings
from rollouts.launcher import Launcher
from rollouts.ledger import TaskLedger, write_note
from rollouts.recovery import Known, recover
from rollouts.tasksets.check import MAX_GROUP_SIZE
from rollouts.teller import EventTeller
from schemas import Task
from schemas.ids import group_id, rollout_id
from schemas.topics import TASKS

GROUP = "launcher"
_COMMIT_S = 0.5
_FULL_S = 0.2


class TaskIntake:
    """A member of the launchers' group: takes tasks on as there is room, commits them as they are done."""

    def __init__(
        self,
        kafka: KafkaSettings,
        launcher: Launcher,
        ledger: TaskLedger,
        teller: EventTeller,
        log: FilteringBoundLogger,
    ) -> None:
        self._kafka = kafka
        self._launcher = launcher
        self._ledger = ledger
        self._teller = teller
        self._log = log
        self._known: dict[str, Known] = {}
        self._committing = asyncio.Lock()
        self._consumer = RecordConsumer.subscribe(
            kafka, [TASKS], group=GROUP, on_assign=self._assigned, on_revoke=self._revoked
        )

    async def start(self) -> None:
        """Join the group."""
        await self._consumer.start()

    async def close(self) -> None:
        """Commit what is done, and leave the group."""
        await self._consumer.close()

    async def read(self) -> None:
        """Take tasks on, until cancelled."""
        while True:
            room = self._launcher.room()
            if room <= 0:
                await asyncio.sleep(_FULL_S)
                continue
            received = await self._consumer.poll(max_records=room, timeout_s=0.5)
            for one in received:
                self._enter(one)
            if self._ledger.must_commit():
                await self._commit()
            for one in received:
                self._hand_over(one)

    async def commit_done(self) -> None:
        """Commit what is done from time to time, until cancelled."""
        while True:
            await asyncio.sleep(_COMMIT_S)
            try:
                await self._commit()
            except IngestError as error:  # the next one will commit it; until then a restart only reads more
                self._log.warning("tasks not committed yet", why=str(error))

    def _enter(self, received: Received[Task]) -> None:
        """Write a task into the ledger."""
        if self._ledger.owns(received.partition):
            self._ledger.take(
                received.partition,
                received.offset,
                training=not received.record.evaluation,
                events_from=self._teller.until,
                begun=any(name in self._known for name in _rollouts(received.record)),
            )

    def _hand_over(self, received: Received[Task]) -> None:
        """Give a task to the launcher, with what is known of it."""
        if self._ledger.owns(received.partition):  # it may have been given away while we committed
            names = _rollouts(received.record)
            known = {name: self._known.pop(name) for name in names if name in self._known}
            self._launcher.take(received.record, received.partition, received.offset, known)

    async def _assigned(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int] | None:
        numbers = [number for _topic, number in partitions]
        recovered = await recover(self._kafka, self._consumer, numbers)
        self._known |= recovered.rollouts
        self._teller.begin_at(recovered.until)
        for number, (offset, note) in recovered.notes.items():
            self._ledger.assigned(number, offset, note, recovered.ends[number])
            self._launcher.assigned(number, note.launched)
        self._log.info("partitions assigned", partitions=numbers, rollouts_known=len(recovered.rollouts))
        return None

    async def _revoked(self, partitions: list[TopicPartition]) -> None:
        numbers = [number for _topic, number in partitions]
        await self._launcher.drop(numbers)
        try:
            await self._commit()
        except IngestError as error:
            self._log.warning("tasks not committed before their partitions went", why=str(error))
        for number in numbers:
            self._ledger.revoked(number)
        self._log.info("partitions given away", partitions=numbers)

    async def _commit(self) -> None:
        async with self._committing:
            moved = self._ledger.to_commit(self._teller.until)
            for number, (offset, note) in moved.items():
                await self._consumer.commit({(TASKS, number): offset}, write_note(note))
                self._ledger.committed({number: (offset, note)})


def _rollouts(task: Task) -> list[str]:
    group = group_id(task.taskset, task.task_id, task.epoch)
    return [rollout_id(group, index) for index in range(min(max(0, task.group_size), MAX_GROUP_SIZE))]
