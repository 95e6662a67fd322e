"""The terminal view of a running stack. Pure: figures in, a rich renderable out."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from deploy.local.loop import LoopState
from schemas import Step

_BARS = " ▁▂▃▄▅▆▇█"
_STEPS_SHOWN = 8


def render(
    state: LoopState, services: Sequence[Mapping[str, Any]], now_s: float, *, title: str, notes: Sequence[str] = ()
) -> RenderableType:
    """One frame: services, the loop's figures, the newest steps, and the last things that happened."""
    parts: list[RenderableType] = [_services(services), Text(), _figures(state, now_s), Text(), _steps(state.steps)]
    if notes:
        parts += [Text(), Text("\n".join(notes), style="dim", no_wrap=True, overflow="ellipsis")]
    return Panel(Group(*parts), title=title, title_align="left", padding=(0, 1))


def sparkline(values: Sequence[float]) -> str:
    """Values between 0 and 1 as a row of bars."""
    return "".join(_BARS[min(8, max(0, round(value * 8)))] for value in values)


def _services(services: Sequence[Mapping[str, Any]]) -> RenderableType:
    line = Text()
    for service in services:
        ready, restarts = service["ready"], service["restarts"]
        line.append("● " if ready else "○ ", style="green" if ready else "yellow")
        line.append(str(service["service"]))
        line.append(f" ↻{restarts}" if restarts else "", style="red")
        line.append("   ")
    return line


def _figures(state: LoopState, now_s: float) -> RenderableType:
    shown = state.snapshot(now_s)
    grid = Table.grid(padding=(0, 3))
    for _ in range(4):
        grid.add_column()
    lag = ", ".join(f"{name} {value:.0f}" for name, value in shown["lag"].items()) or "–"
    rows = [
        ("policy version", shown["policy_version"], "reward (recent)", shown["reward_recent"]),
        ("rollouts open", shown["rollouts_open"], "finished", shown["rollouts_finished"]),
        ("completions/s", shown["completions_per_s"], "tokens/s", shown["tokens_per_s"]),
        ("trajectories", shown["trajectories"], "lag", lag),
    ]
    for left, left_value, right, right_value in rows:
        grid.add_row(Text(left, "dim"), _text(left_value), Text(right, "dim"), _text(right_value))
    return grid


def _steps(steps: Sequence[Step]) -> RenderableType:
    if not steps:
        return Text("no optimizer step yet", style="dim")
    rewards = [step.metrics.get("reward_mean", 0.0) for step in steps]
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("step", "version", "groups", "reward", "delta", "tokens", "seconds"):
        table.add_column(name, justify="right")
    for step in steps[-_STEPS_SHOWN:]:
        metrics = step.metrics
        table.add_row(
            str(step.step),
            str(step.policy_version),
            str(len(step.groups)),
            _text(metrics.get("reward_mean")),
            _text(metrics.get("delta_mean")),
            str(step.trained_tokens),
            f"{sum(step.timings.values()):.1f}",
        )
    return Group(Text(f"reward by step  {sparkline(rewards)}"), table)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
