"""Puts the commands together, and turns every way in which one can end into an exit status."""

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from deploy.cli import config, demo, doctor, install, rollouts, services, sql, stack, tasks, topics
from schemas import ForgestreamError

BUG_STATUS = 70
INTERRUPTED_STATUS = 130


def make_app() -> typer.Typer:
    """The application with all commands."""
    app = typer.Typer(
        name="forgestream",
        help="Train language-model agents through the harness they really use, on a durable event log.",
        epilog="First run: `forgestream doctor`, then `forgestream demo`.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # plain help costs half of what coloured help does, and pipes well
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for module in (demo, stack, doctor, install, tasks, rollouts, sql, topics, config, services):
        module.register(app)
    return app


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        print(version("forgestream"))
    except PackageNotFoundError:
        print("not installed: run `make install`")
    raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Only takes the options that stand before a command."""


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit status.

    0 done · 1 failed · 2 bad input · 3 something is missing, taken or not running · 70 a bug · 130 interrupted
    """
    try:
        return int(make_app()(args=list(arguments), standalone_mode=False) or 0)
    except TyperException as error:
        show = getattr(error, "show", None)  # usage errors print the usage as well
        show() if show else print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ForgestreamError as error:
        for line in str(error).splitlines():
            print(f"error: {line}" if not line.startswith(" ") else line, file=sys.stderr)
        return error.exit_status
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        # the reader of our output, `head` for example, has gone: nothing is wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        traceback.print_exc()
        print("error: this is a bug in forgestream; the lines above say where", file=sys.stderr)
        return BUG_STATUS
