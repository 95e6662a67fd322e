"""`forgestream config`: every setting, its value and where it came from."""

import typer

from deploy.cli.options import STATUSES, ConfigOption, JsonOption, SetOption, StateOption, given
from deploy.output import print_rows


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("config", short_help="Show every setting and where it came from.", epilog=STATUSES)(_config)


def _config(
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show every setting with its value and origin; secrets are masked.

    Later wins: defaults, then forgestream.toml, then FORGESTREAM_… variables, then --set.

    \b
    Examples:
      forgestream config
      forgestream config --set proxy.port=8800 --json
      FORGESTREAM_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 forgestream config
    """
    print_rows(given(config, assignments, state).resolved.rows(), ["key", "value", "origin"], as_json=as_json)
