"""`forgestream proxy | launcher | assembler | archiver | learner | engine`: one service in this process."""

from collections.abc import Callable
from typing import Annotated

import typer

from deploy.cli.options import STATUSES, ConfigOption, SetOption, StateOption, given, reachable_kafka

ParentOption = Annotated[int, typer.Option("--parent-pid", hidden=True, help="Stop when this process ends.")]

_DOES = {
    "proxy": "Serve harnesses from the policy, and record every completion.",
    "launcher": "Turn tasks into rollouts, and judge them.",
    "assembler": "Turn finished rollouts into trajectories, exactly once.",
    "archiver": "Write every topic to Parquet, for SQL.",
    "learner": "Turn groups of trajectories into policy versions.",
    "engine": "Sample tokens from the newest policy version.",
}


def register(app: typer.Typer) -> None:
    """Add one command a service."""
    for name, does in _DOES.items():
        examples = f"forgestream {name}\n  forgestream {name} --set {name}.port=9000"
        about = "One service, in this process. Logs JSON lines to standard error; stops on SIGTERM."
        help_text = f"{does}\n\n{about}\n\n\b\nExamples:\n  {examples}"
        app.command(name, help=help_text, short_help=does, epilog=STATUSES)(_command(name))


def _command(name: str) -> Callable[..., None]:
    def command(
        config: ConfigOption = None,
        assignments: SetOption = None,
        state: StateOption = None,
        parent_pid: ParentOption = 0,
    ) -> None:
        if parent_pid:
            from deploy.local.processes import die_with_parent

            die_with_parent(parent_pid)
        settings = given(config, assignments, state).settings
        settings = settings.model_copy(update={"kafka": reachable_kafka(settings)})
        from deploy.services import run_named

        raise typer.Exit(run_named(name, settings))

    return command
