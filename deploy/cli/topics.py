"""`forgestream topics`: the topics of the registry on a broker."""

import asyncio
from dataclasses import asdict

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
from deploy.output import print_rows


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Create and list the topics.", no_args_is_help=True, rich_markup_mode=None)
    group.command("apply", epilog=STATUSES)(_apply)
    group.command("list", epilog=STATUSES)(_list)
    app.add_typer(group, name="topics")


def _apply(
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create the topics that are missing; changes none that is there.

    \b
    Examples:
      forgestream topics apply
      FORGESTREAM_KAFKA__BOOTSTRAP_SERVERS=kafka:9092 forgestream topics apply
    """
    from ingest.kafka.admin import ensure_topics

    quiet_logs()
    created = asyncio.run(ensure_topics(reachable_kafka(given(config, assignments, state).settings)))
    print_rows([{"created": name} for name in created], ["created"], as_json=as_json)


def _list(
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the topics that are there, with their records.

    \b
    Examples:
      forgestream topics list
      forgestream topics list --json
    """
    from ingest.kafka.admin import describe_topics

    quiet_logs()
    found = asyncio.run(describe_topics(reachable_kafka(given(config, assignments, state).settings)))
    print_rows([asdict(topic) for topic in found], ["name", "partitions", "records", "cleanup"], as_json=as_json)
