"""One demo as a command: run it, show it, say whether it succeeded."""

import asyncio
import json

from deploy.config import Configuration
from deploy.demo.plan import DemoOptions, make_plan
from deploy.demo.run import run_demo
from deploy.demo.tell import Teller
from ingest.service.logging import configure_logging


def demo(configuration: Configuration, options: DemoOptions, *, as_json: bool) -> int:
    """Run a demo. Returns 0 when it succeeded, 1 when it did not.

    Raises:
        Interrupted: a signal came; everything has stopped.
        ForgestreamError: it could not be run to its end.
    """
    configure_logging("demo", "error")
    teller = Teller()
    result = asyncio.run(run_demo(configuration, make_plan(options), teller))
    teller.result(result)
    if as_json:
        print(json.dumps(result.as_json()), flush=True)
    return 0 if result.succeeded else 1
