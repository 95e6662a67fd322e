"""Writes life-cycle events to rollouts.v1, and remembers how far the log has them."""

import asyncio

from ingest.kafka.producer import Delivery, RecordProducer
from rollouts.ledger import START, Positions
from schemas import RolloutEvent
from schemas.topics import ROLLOUTS


class EventTeller:
    """The launcher's pen. Events of one rollout arrive in the order in which they were told."""

    def __init__(self, producer: RecordProducer) -> None:
        self._producer = producer
        self._until = list(START)
        self._failure: asyncio.Future[None] | None = None

    @property
    def until(self) -> Positions:
        """For each partition an offset that is written already: events told from now on lie at or beyond it."""
        return tuple(self._until)

    def begin_at(self, positions: Positions) -> None:
        """The log reaches so far without us."""
        self._until = [max(pair) for pair in zip(self._until, positions, strict=True)]

    async def tell(self, event: RolloutEvent) -> None:
        """Write an event; returns when the log has it.

        Raises:
            DeliveryError: the log does not take it.
        """
        self._note(await self._producer.send(ROLLOUTS, event))

    def tell_soon(self, event: RolloutEvent) -> None:
        """Write an event without waiting. If the log does not take it, `failed` ends with the error.

        Raises:
            DeliveryError: refused at once.
        """
        self._producer.send_soon(ROLLOUTS, event).add_done_callback(self._settled)

    async def failed(self) -> None:
        """Never returns; raises when an event that nobody waited for was lost.

        Raises:
            DeliveryError: that event's.
        """
        self._failure = asyncio.get_running_loop().create_future()
        await self._failure

    def _settled(self, delivery: "asyncio.Future[Delivery]") -> None:
        if delivery.cancelled():
            return
        error = delivery.exception()
        if error is None:
            self._note(delivery.result())
        elif self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)

    def _note(self, delivery: Delivery) -> None:
        self._until[delivery.partition] = max(self._until[delivery.partition], delivery.offset + 1)
