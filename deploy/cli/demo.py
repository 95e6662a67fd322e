"""`forgestream demo`: the main job on real input."""

from typing import Annotated, Literal

import typer

from deploy.cli.options import ConfigOption, JsonOption, SetOption, StateOption, given

STATUS_HELP = (
    "Exit status: 0 the held-out reward rose and nothing was lost or doubled (with --quick: the steps happened; "
    "with --shuffle-rewards: it did not rise), 1 it did not, 2 bad input, 3 something is missing, taken or not "
    "running, 70 a bug, 130 interrupted."
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", short_help="Train a small model on real tasks, start to end.", epilog=STATUS_HELP)(_demo)


def _demo(
    quick: Annotated[
        bool, typer.Option("--quick", help="A tiny random model: the whole loop in about a minute.")
    ] = False,
    harness: Annotated[Literal["react", "pi"], typer.Option(help="The agent program.")] = "react",
    engine: Annotated[Literal["embedded", "vllm"], typer.Option(help="The engine.")] = "embedded",
    seed: Annotated[int, typer.Option(min=0, max=90, help="Seed of tasks and adapters.")] = 0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Most optimizer steps [default: 16; 4 with --quick --harness pi].")
    ] = None,
    shuffle_rewards: Annotated[
        bool, typer.Option("--shuffle-rewards", help="Negative control: rewards change owners, nothing can be learned.")
    ] = False,
    keep_running: Annotated[
        bool, typer.Option("--keep-running", help="Leave the stack up at the end, until Ctrl-C.")
    ] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small model on real tasks, start to end, and show the reward by policy version.

    Starts a fresh stack under <state>/demo, measures held-out questions, trains while rollouts go on, measures the
    same questions again, and asks the archive in SQL. Progress goes to standard error; with --json the last line of
    standard output is one object.

    \b
    Examples:
      forgestream demo
      forgestream demo --quick --json
      forgestream demo --harness pi
      forgestream demo --seed 1 --shuffle-rewards
    """
    from deploy.demo.main import demo
    from deploy.demo.plan import DemoOptions

    options = DemoOptions(quick, harness, engine, seed, steps, shuffle_rewards, keep_running)
    raise typer.Exit(demo(given(config, assignments, state), options, as_json=as_json))
