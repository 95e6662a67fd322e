"""`forgestream tasks`: ask for rollouts."""

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
from deploy.output import say

if TYPE_CHECKING:
    from rollouts.tasksets.gym import GymSource
    from rollouts.tasksets.template import TaskTemplate
    from schemas import Task

Extract = Literal["whole", "first_word", "last_word", "last_number", "last_line"]

FileArgument = Annotated[Path | None, typer.Argument(metavar="FILE.jsonl", help="One task a line, as JSON.")]
GymOption = Annotated[str | None, typer.Option("--gym", metavar="NAME", help="A reasoning-gym data set instead.")]
GymConfigOption = Annotated[str, typer.Option("--gym-config", metavar="JSON", help="Its configuration.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Produce tasks.", no_args_is_help=True, rich_markup_mode=None)
    group.command("produce", epilog=STATUSES)(_produce)
    app.add_typer(group, name="tasks")


def _produce(
    file: FileArgument = None,
    gym: GymOption = None,
    gym_config: GymConfigOption = "{}",
    size: Annotated[int, typer.Option(help="With --gym: how many tasks.")] = 100,
    seed: Annotated[int, typer.Option(help="With --gym: number of the training split, from 0.")] = 0,
    split: Annotated[
        Literal["train", "heldout"], typer.Option(help="With --gym: held-out tasks share no question.")
    ] = ("train"),
    train_size: Annotated[
        int, typer.Option(help="With --split heldout: training questions of this seed to keep apart from.")
    ] = 1000,
    extract: Annotated[Extract, typer.Option(help="With --gym: the part of a reply that is scored.")] = "whole",
    require_stop: Annotated[
        bool, typer.Option("--require-stop", help="With --gym: a reply that was cut off earns nothing.")
    ] = False,
    taskset: Annotated[str, typer.Option(help="Name of the task set [default: after the file or data set].")] = "",
    harness: Annotated[str, typer.Option(help="Who attempts the tasks, where a line does not say.")] = "react",
    harness_options: Annotated[str, typer.Option(metavar="JSON", help="Options of that harness.")] = "{}",
    group_size: Annotated[int, typer.Option(help="Rollouts of one task.")] = 8,
    temperature: Annotated[float, typer.Option(help="Sampling temperature.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Most tokens of one completion; 0: as the harness asks.")] = 0,
    wall_s: Annotated[float, typer.Option(help="Most seconds of one rollout.")] = 600.0,
    epoch: Annotated[int, typer.Option(help="Another number makes the same tasks run again.")] = 0,
    evaluation: Annotated[bool, typer.Option("--evaluation", help="Measure only; never train.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and print the tasks as JSON lines.")] = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    state: StateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Produce tasks from a JSONL file, or from a reasoning-gym data set by name.

    Every line is checked first; when one is wrong, nothing is produced and each problem is named by line and field.

    \b
    Examples:
      forgestream tasks produce tasks.jsonl
      forgestream tasks produce tasks.jsonl --harness pi --group-size 4 --dry-run
      forgestream tasks produce --gym needle_haystack --extract first_word \\
        --gym-config '{"min_num_statements": 1, "max_num_statements": 1}' --size 200
      forgestream tasks produce --gym needle_haystack --split heldout --size 16 --evaluation
    """
    from rollouts.tasksets.gym import GymSource
    from rollouts.tasksets.template import TaskTemplate
    from schemas import Harness, Limits, Sampling

    quiet_logs()
    settings = given(config, assignments, state).settings
    template = TaskTemplate(
        taskset=taskset,
        harness=Harness(name=harness, options=json.dumps(_object("--harness-options", harness_options))),
        group_size=group_size,
        sampling=Sampling(temperature=temperature, max_tokens=max_tokens),
        limits=Limits(wall_s=wall_s),
        epoch=epoch,
        evaluation=evaluation,
    )
    source = GymSource(
        dataset=gym or "",
        size=size,
        config=_object("--gym-config", gym_config),
        seed=seed,
        split=split,
        train_size=train_size,
        extract=extract,
        require_stop=require_stop,
    )
    tasks = _tasks(file, source, template)
    if dry_run:
        _print_tasks(tasks)
        return
    asyncio.run(_send(reachable_kafka(settings), tasks, as_json))


def _tasks(file: Path | None, source: "GymSource", template: "TaskTemplate") -> "list[Task]":
    from deploy.errors import ConfigError

    if (file is None) == (not source.dataset):
        raise ConfigError("tasks produce: give either a JSONL file or --gym NAME")
    if file is not None:
        from rollouts.tasksets.jsonl import load_jsonl

        return load_jsonl(file, template)
    return asyncio.run(_gym_tasks(source, template))


async def _gym_tasks(source: "GymSource", template: "TaskTemplate") -> "list[Task]":
    from rollouts.tasksets.gym import gym_tasks
    from rollouts.verifiers.gym_client import GymWorker

    say(f"loading reasoning-gym for {source.dataset} (some seconds)")
    worker = GymWorker()
    try:
        return await gym_tasks(worker, source, template)
    finally:
        await worker.close()


async def _send(kafka: Any, tasks: "list[Task]", as_json: bool) -> None:
    from rollouts.tasksets.produce import produce_tasks

    written = await produce_tasks(kafka, tasks)
    rollouts = sum(task.group_size for task in tasks)
    if as_json:
        print(json.dumps({"tasks": written, "rollouts": rollouts, "taskset": tasks[0].taskset}))
    else:
        say(f"{written} tasks of {tasks[0].taskset} produced, {rollouts} rollouts: see `forgestream rollouts list`")


def _print_tasks(tasks: "list[Task]") -> None:
    import msgspec

    for task in tasks:
        print(msgspec.json.encode(task).decode())


def _object(option: str, text: str) -> dict[str, Any]:
    from deploy.errors import ConfigError

    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{option}: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{option}: expected a JSON object, not {text}")
    return value
