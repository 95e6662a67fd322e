"""`forgestream rollouts`: what became of them."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.options import (
    STATUSES,
    ConfigOption,
    JsonOption,
    SetOption,
    StateOption,
    given,
    quiet_logs,
    reachable_kafka,
)
from deploy.output import print_rows, say

if TYPE_CHECKING:
    from deploy.config import Settings
    from deploy.rollout_source import RolloutRecords


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="List and show rollouts.", no_args_is_help=True, rich_markup_mode=None)
    group.command("list", epilog=STATUSES)(_list)
    group.command("show", epilog=STATUSES)(_show)
    app.add_typer(group, name="rollouts")


def _list(
    taskset: Annotated[str, typer.Option(help="Only this task set.")] = "",
    end_reason: Annotated[str, typer.Option(help="Only rollouts that ended so, for example harness_error.")] = "",
    limit: Annotated[int, typer.Option(help="The newest so many; 0 shows all.")] = 50,
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """List rollouts, the newest last: from the log, or from the archive when no stack runs.

    \b
    Examples:
      forgestream rollouts list
      forgestream rollouts list --end-reason harness_error --json
    """
    from deploy.rollout_list import COLUMNS, rollout_rows

    records = _records(given(config, assignments, state).settings)
    rows = [
        row
        for row in rollout_rows(records.events, records.trajectories)
        if taskset in ("", row["taskset"]) and end_reason in ("", row["end_reason"])
    ]
    print_rows(rows[-limit:] if limit else rows, COLUMNS, as_json=as_json)
    if not rows and not as_json:
        say("no rollouts: `forgestream tasks produce` asks for some")


def _show(
    rollout_id: Annotated[str, typer.Argument(metavar="ROLLOUT_ID")],
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one rollout: events, model calls, reward, and whether it is trained.

    \b
    Examples:
      forgestream rollouts show needle-haystack-train-0-3-0-1f0c2d9e77-r0
    """
    from deploy.errors import ConfigError
    from deploy.rollout_list import rollout_story

    records = _records(given(config, assignments, state).settings)
    story = rollout_story(rollout_id, records.events, records.completions, records.trajectories)
    if story is None:
        raise ConfigError(f"rollout {rollout_id}: unknown; `forgestream rollouts list` shows those that there are")
    print(json.dumps(story, ensure_ascii=False) if as_json else json.dumps(story, ensure_ascii=False, indent=2))


def _records(settings: "Settings") -> "RolloutRecords":
    from deploy.errors import NotRunning
    from deploy.rollout_source import from_archive, from_log

    quiet_logs()
    try:
        kafka = reachable_kafka(settings)
    except NotRunning:
        if not settings.archiver.root.is_dir():
            raise
        return from_archive(settings.archiver.root)
    return from_log(kafka)
