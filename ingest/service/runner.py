"""Runs one service in this process: logs, event loop, signals, health server, exit status."""

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext

import uvloop
from structlog.typing import FilteringBoundLogger

from ingest.service.context import ServiceContext
from ingest.service.health import health_server
from ingest.service.logging import configure_logging
from ingest.service.metrics import new_registry
from ingest.service.settings import ServiceSettings
from schemas import ForgestreamError

GRACE_S = 30.0
"""How long a service may take to stop before it is ended hard."""
BUG_STATUS = 70
"""Exit status of an error that nobody expected (EX_SOFTWARE of sysexits.h)."""

Main = Callable[[ServiceContext], Awaitable[None]]


def run_service(
    name: str, main: Main, settings: ServiceSettings, *, serve_health: bool = True, grace_s: float = GRACE_S
) -> int:
    """Run `main` until it returns; the exit status of the process.

    The first SIGTERM or SIGINT sets `ctx.stopping`; `main` then has `grace_s` to return. A second signal, or the end
    of that time, ends the process at once with 128 + the signal's number.

    Returns:
        0; the `exit_status` of a ForgestreamError (one log line); or 70 for anything else (traceback in the log).
    """
    log = configure_logging(name, settings.log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(name, main, settings, log, serve_health, grace_s))
    except ForgestreamError as error:
        log.error("failed", error=str(error), kind=type(error).__name__)
        return error.exit_status
    except BaseException:
        # also a stray CancelledError or KeyboardInterrupt: whatever ends a service is in its log
        log.exception("crashed")
        return BUG_STATUS
    log.info("stopped")
    return 0


async def _serve(
    name: str,
    main: Main,
    settings: ServiceSettings,
    log: FilteringBoundLogger,
    serve_health: bool,
    grace_s: float,
) -> None:
    ctx = ServiceContext(name=name, log=log, registry=new_registry(), stopping=asyncio.Event())
    with _stop_on_signal(ctx, grace_s):
        server = health_server(ctx, settings) if serve_health else nullcontext(settings.port)
        async with server as port:
            log.info("starting", pid=os.getpid(), host=settings.host, port=port)
            await main(ctx)


@contextmanager
def _stop_on_signal(ctx: ServiceContext, grace_s: float) -> Iterator[None]:
    """Plain signal handlers, not the loop's: a second signal must work while the loop is blocked."""
    loop = asyncio.get_running_loop()
    timers: list[threading.Timer] = []

    def on_signal(number: int, _frame: object) -> None:
        if timers:
            os._exit(128 + number)
        timer = threading.Timer(grace_s, _end_hard, (ctx, grace_s, number))
        timer.daemon = True
        timers.append(timer)
        timer.start()
        loop.call_soon_threadsafe(_begin_stop, ctx, number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in timers:
            timer.cancel()


def _begin_stop(ctx: ServiceContext, number: int) -> None:
    ctx.log.info("stopping", signal=signal.Signals(number).name)
    ctx.not_ready("stopping")
    ctx.stopping.set()


def _end_hard(ctx: ServiceContext, grace_s: float, number: int) -> None:
    ctx.log.error("did not stop in time, ending hard", grace_s=grace_s)
    os._exit(128 + number)
