"""`forgestream rollouts`: what became of them, from the log of a running stack."""

import asyncio
import json
from typing import Annotated

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
    """List rollouts, the newest last. Of a stopped stack, `forgestream sql` tells the same from the archive.

    \b
    Examples:
      forgestream rollouts list
      forgestream rollouts list --end-reason harness_error --json
    """
    from deploy.rollout_list import COLUMNS, rollout_rows
    from ingest.kafka.consumer import read_all
    from schemas.topics import ROLLOUTS, TRAJECTORIES

    quiet_logs()
    kafka = reachable_kafka(given(config, assignments, state).settings)
    events = [r.record for r in asyncio.run(read_all(kafka, ROLLOUTS))]
    trajectories = [r.record for r in asyncio.run(read_all(kafka, TRAJECTORIES))]
    rows = [
        row
        for row in rollout_rows(events, trajectories)
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
    from ingest.kafka.consumer import read_all
    from schemas.topics import COMPLETIONS, ROLLOUTS, TRAJECTORIES

    quiet_logs()
    kafka = reachable_kafka(given(config, assignments, state).settings)
    events, completions, trajectories = (
        [r.record for r in asyncio.run(read_all(kafka, topic))] for topic in (ROLLOUTS, COMPLETIONS, TRAJECTORIES)
    )
    story = rollout_story(rollout_id, events, completions, trajectories)
    if story is None:
        raise ConfigError(f"rollout {rollout_id}: not on the log; `forgestream rollouts list` shows those that are")
    print(json.dumps(story, ensure_ascii=False) if as_json else json.dumps(story, ensure_ascii=False, indent=2))
