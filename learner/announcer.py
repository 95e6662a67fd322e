"""Tells the log about steps and policy versions: each exactly once, both together, never from two learners."""

from types import TracebackType
from typing import Self

from ingest.errors import Fenced, TransactionFailed
from ingest.kafka.consumer import read_all
from ingest.kafka.settings import KafkaSettings
from ingest.kafka.transactions import TransactionalProducer
from schemas import Policy, Step
from schemas.topics import POLICIES, STEPS


class Announcer:
    """Writes steps.v1 and policies.v1 for one run, in transactions. Starting it fences a learner that was left over.

    Args:
        kafka: How to reach the brokers.
        run_id: The run; part of the transactional id.
        policy_id: The policy that the run trains.
    """

    def __init__(self, kafka: KafkaSettings, run_id: str, policy_id: str) -> None:
        self._kafka = kafka
        self._transactional_id = f"learner-{run_id}"
        self._policy_id = policy_id
        self._producer: TransactionalProducer | None = None

    async def __aenter__(self) -> Self:
        await self._reconnect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._producer is not None:
            await self._producer.close()

    async def newest(self) -> Policy | None:
        """The newest announced version of the policy, of whatever run."""
        found = [one.record for one in await read_all(self._kafka, POLICIES) if one.key == self._policy_id]
        return max(found, key=lambda policy: policy.version, default=None)

    async def announce(self, policy: Policy, step: Step | None) -> None:
        """Write a version, and the step that made it, in one transaction.

        Raises:
            TransactionFailed: whether it took effect may be unknown: call `announce_once` then.
            Fenced: a newer learner has taken over this run.
        """
        if self._producer is None:
            raise TransactionFailed("the announcer is not started")
        async with self._producer.transaction() as transaction:
            if step is not None:
                transaction.send(STEPS, step)
            transaction.send(POLICIES, policy)

    async def announce_once(self, policy: Policy, step: Step | None) -> bool:
        """As `announce`, unless the log has the version already. Returns whether it was written now.

        The log is asked with a new producer: it ends what an earlier one left open, so the answer is final.

        Raises:
            IngestError: no answer; may be called again.
            Fenced: a newer learner has taken over this run.
        """
        await self._reconnect()
        newest = await self.newest()
        if newest is not None and newest.version >= policy.version:
            if newest.run_id != policy.run_id:
                raise Fenced(f"policy {self._policy_id} is trained by run {newest.run_id} now: this learner must stop")
            return False
        await self.announce(policy, step)
        return True

    async def _reconnect(self) -> None:
        if self._producer is not None:
            await self._producer.close()
        self._producer = TransactionalProducer(self._kafka, self._transactional_id)
        await self._producer.start()
