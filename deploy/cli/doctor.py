"""`forgestream doctor`: what is missing, and the command that mends it."""

import typer

from deploy.cli.options import STATUSES, ConfigOption, JsonOption, SetOption, StateOption, given
from deploy.output import print_rows, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", short_help="Say what is missing, and how to mend it.", epilog=STATUSES)(_doctor)


def _doctor(
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look for everything that the stack needs; exit status 3 when something is missing.

    \b
    Examples:
      forgestream doctor
      forgestream doctor --json
    """
    from deploy.doctor import examine

    checks = examine(given(config, assignments, state).settings)
    rows = [{"check": c.name, "status": c.status, "found": c.found, "mend": "" if c.ok else c.mend} for c in checks]
    print_rows(rows, ["check", "status", "found", "mend"], as_json=as_json)
    missing = [check for check in checks if check.status == "missing"]
    if missing:
        say(f"{len(missing)} missing: see the last column")
        raise typer.Exit(3)
    if not as_json:
        say("everything is there")
