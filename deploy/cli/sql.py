"""`forgestream sql`: questions to the archive."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.options import STATUSES, ConfigOption, JsonOption, SetOption, StateOption, given
from deploy.output import print_rows, say

if TYPE_CHECKING:
    from ingest.analytics import Archive, Result


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sql", short_help="Ask the archive in SQL.", epilog=STATUSES)(_sql)


def _sql(
    statement: Annotated[str | None, typer.Argument(metavar="SELECT", help="One SELECT over the views.")] = None,
    query: Annotated[str | None, typer.Option("--query", metavar="NAME", help="A named query instead.")] = None,
    queries: Annotated[bool, typer.Option("--queries", help="List the named queries.")] = False,
    views: Annotated[bool, typer.Option("--views", help="List the views and their columns.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV output.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the archive in SQL; works whether or not the stack runs, and changes nothing.

    \b
    Examples:
      forgestream sql --query reward_by_version
      forgestream sql "SELECT end_reason, count(*) FROM rollouts GROUP BY ALL"
      forgestream sql --views
      forgestream sql --state .forgestream/demo --query latency --csv
    """
    from deploy.errors import ConfigError
    from ingest.analytics import open_archive

    if sum((statement is not None, query is not None, queries, views)) != 1:
        raise ConfigError("sql: give one of a SELECT, --query NAME, --queries and --views")
    with open_archive(given(config, assignments, state).settings.archiver.root) as archive:
        if queries:
            rows = [{"query": one.name, "answers": one.doc} for one in archive.queries()]
            print_rows(rows, ["query", "answers"], as_json=as_json, as_csv=as_csv)
        elif views:
            _print_views(archive, as_json=as_json, as_csv=as_csv)
        else:
            began = time.perf_counter()
            result = archive.named(query) if query is not None else archive.query(statement or "")
            _print_result(result, time.perf_counter() - began, as_json=as_json, as_csv=as_csv)


def _print_views(archive: "Archive", *, as_json: bool, as_csv: bool) -> None:
    rows = [
        {"view": view.name, "column": column.name, "type": column.type, "means": column.doc}
        for view in archive.views()
        for column in view.columns
    ]
    if as_json or as_csv:
        print_rows(rows, ["view", "column", "type", "means"], as_json=as_json, as_csv=as_csv)
        return
    for view in archive.views():
        print(f"{view.name}: {view.doc}")
        print_rows([row for row in rows if row["view"] == view.name], ["column", "type", "means"])
        print()


def _print_result(result: "Result", seconds: float, *, as_json: bool, as_csv: bool) -> None:
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    print_rows(rows, result.columns, as_json=as_json, as_csv=as_csv)
    if not as_json and not as_csv:
        say(f"{len(rows)} rows in {seconds * 1e3:.0f} ms")
