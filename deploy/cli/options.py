"""Options that many commands share, and the settings that they make."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from deploy.config import Configuration, Settings
    from ingest.kafka.settings import KafkaSettings

STATUSES = (
    "Exit status: 0 done, 1 failed, 2 bad input, 3 something is missing, taken or not running, "
    "70 a bug, 130 interrupted."
)

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file; without it ./forgestream.toml, if there is one."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="One setting, for example proxy.port=8800. May be repeated."),
]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", metavar="FOLDER", help="Where the local stack keeps everything [default: .forgestream]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


def given(config: Path | None, assignments: Sequence[str] | None, state: Path | None = None) -> "Configuration":
    """The settings that a command was given; `--state` is short for `--set state=…`.

    Raises:
        ConfigError: something in them means nothing or does not fit.
    """
    from deploy.config import load

    return load(config, [*(assignments or ()), *([f"state={state}"] if state else ())])


def reachable_kafka(settings: "Settings") -> "KafkaSettings":
    """The log: as configured, else the one of the running local stack.

    Raises:
        NotRunning: neither.
    """
    if settings.kafka.bootstrap_servers:
        return settings.kafka
    from deploy.errors import NotRunning
    from deploy.local.statefile import running_stack

    stack = running_stack(settings.state)
    if stack is None or not stack.bootstrap_servers:
        raise NotRunning(
            f"no log to talk to: no stack runs on {settings.state}; start one with `forgestream up`, "
            "or name a cluster with FORGESTREAM_KAFKA__BOOTSTRAP_SERVERS"
        )
    return settings.kafka.model_copy(update={"bootstrap_servers": stack.bootstrap_servers})


def quiet_logs() -> None:
    """For commands that use the services' parts in process: their warnings go to standard error, not among output."""
    from ingest.service.logging import configure_logging

    configure_logging("forgestream", "warning")
