"""`forgestream install`: what the local stack needs beside Python packages."""

from typing import Annotated

import typer

from deploy.cli.options import STATUSES
from deploy.output import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("install", short_help="Fetch the broker and make the small models.", epilog=STATUSES)(_install)


def _install(
    model: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="smollm2 or tiny [default: both]. Repeatable.")
    ] = None,
    harness: Annotated[
        list[str] | None, typer.Option("--harness", metavar="NAME", help="Also install a harness pack. Repeatable.")
    ] = None,
) -> None:
    """Fetch the Kafka broker and make the small models, once, under .forgestream.

    What is there already is left alone; an install that was cut off goes on where it was.

    \b
    Examples:
      forgestream install
      forgestream install --model tiny
      forgestream install --harness pi
    """
    from deploy.local.kafka import install
    from deploy.local.stack import KAFKA_CACHE
    from deploy.models import SHIPPED, model_folder

    install(KAFKA_CACHE, report=say)
    for name in model or SHIPPED:
        model_folder(name)
    for name in harness or ():
        _harness(name)
    say("ready: `forgestream demo` runs the loop, `forgestream up` starts the stack")


def _harness(name: str) -> None:
    import asyncio

    from deploy.config import load
    from deploy.errors import ConfigError
    from rollouts.harnesses import PACKS

    if name not in PACKS:
        raise ConfigError(f"--harness {name}: no such harness pack; there are {', '.join(PACKS)}")
    say(f"installing the harness {name}")
    asyncio.run(PACKS[name].install(load().settings.launcher.state_dir / "harnesses"))
