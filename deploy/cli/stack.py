"""`forgestream up` and `forgestream down`: the local stack."""

from typing import Annotated, Literal

import typer

from deploy.cli.options import STATUSES, ConfigOption, JsonOption, SetOption, StateOption, given
from deploy.output import say

EngineOption = Annotated[
    Literal["embedded", "vllm"] | None, typer.Option("--engine", help="Which engine samples tokens.")
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME|PATH", help="smollm2, tiny, or a folder in Hugging Face format.")
]
PortsOption = Annotated[
    Literal["fixed", "auto"], typer.Option("--ports", help="The configured ports, or any that are free.")
]


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("up", short_help="Run the whole system here.", epilog=STATUSES)(_up)
    app.command("down", short_help="Stop it.", epilog=STATUSES)(_down)


def _up(
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    engine: EngineOption = None,
    model: ModelOption = None,
    ports: PortsOption = "fixed",
    without: Annotated[
        list[str] | None, typer.Option("--without", metavar="SERVICE", help="Leave a service out. May be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the whole system on this machine, until Ctrl-C or `forgestream down`.

    Starts a Kafka broker (unless one is configured) and every service, restarts what crashes, keeps one log file a
    service under <state>/logs. Shows the loop on a terminal; else, or with --json, prints
    a JSON line every few seconds.

    \b
    Examples:
      forgestream up
      forgestream up --model tiny --ports auto
      forgestream up --engine vllm --set launcher.max_running=32
      FORGESTREAM_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 forgestream up
    """
    from deploy.local.up import UpOptions, run_up

    options = UpOptions(engine=engine, model=model, free_ports=ports == "auto", without=tuple(without or ()))
    raise typer.Exit(run_up(given(config, assignments, state), options, as_json=as_json))


def _down(
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the stack that runs on a state folder, and wait until it has.

    \b
    Examples:
      forgestream down
      forgestream down --state .forgestream/demo
    """
    import json

    from deploy.local.down import stop_stack

    folder = given(config, assignments, state).settings.state
    pid = stop_stack(folder)
    if as_json:
        print(json.dumps({"stopped": pid, "state": str(folder)}))
    else:
        say(f"stopped the stack on {folder} (pid {pid})")
