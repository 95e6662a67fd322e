"""Tells telemetry.v1 how a service is doing, every few seconds, while it runs."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from ingest.service.context import ServiceContext
from schemas import Telemetry
from schemas.ids import now_us
from schemas.topics import TELEMETRY

if TYPE_CHECKING:
    from ingest.kafka.producer import RecordProducer

Gauges = Callable[[], Mapping[str, float]]


def process_gauges() -> dict[str, float]:
    """Resident memory and CPU seconds of this process."""
    process = psutil.Process()
    times = process.cpu_times()
    return {"rss_bytes": float(process.memory_info().rss), "cpu_s": times.user + times.system}


async def report_gauges(
    ctx: ServiceContext,
    producer: "RecordProducer",
    gauges: Gauges,
    *,
    interval_s: float = 1.0,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Send `gauges()` and the process's own figures until the service stops, and once more at its end.

    Delivery is not awaited: a broker that is away must not hold a service up for the sake of a gauge.
    """
    while True:
        stopping = ctx.stopping.is_set()
        record = telemetry(ctx.name, gauges(), labels or {})
        delivery = producer.send_soon(TELEMETRY, record)
        delivery.add_done_callback(_ignore_result)
        if stopping:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(ctx.stopping.wait(), interval_s)


def telemetry(source: str, gauges: Mapping[str, float], labels: Mapping[str, str]) -> Telemetry:
    """One telemetry record of this moment."""
    values = {name: float(value) for name, value in gauges.items()} | process_gauges()
    return Telemetry(source=source, at_us=now_us(), gauges=values, labels=dict(labels))


def _ignore_result(delivery: asyncio.Future) -> None:
    if not delivery.cancelled():
        delivery.exception()  # marks it as seen
