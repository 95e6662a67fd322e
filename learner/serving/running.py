"""An engine that is up, whichever kind it is."""

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class RunningEngine:
    """Where it answers, and whether it still does."""

    url: str
    """Root of the contract, for example `http://127.0.0.1:8701`."""
    failed: "asyncio.Future[BaseException]"
    """Done when the engine is of no use any more; its result says why."""
