"""How a benchmark prints: one JSON line a figure."""

import json
import os


def show(
    name: str,
    value: float,
    unit: str,
    conditions: str,
    *,
    peer: float | None = None,
    goal: float | None = None,
    at_least: bool = False,
) -> None:
    """Print one figure. `peer` is a comparable figure of the same run; `at_least`: the goal is a floor."""
    met = None if goal is None else bool(value >= goal if at_least else value <= goal)
    line = {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "peer": None if peer is None else round(peer, 3),
        "ratio": None if not peer else round(value / peer, 3),
        "goal": goal,
        "met": met,
        "conditions": conditions,
    }
    print(json.dumps(line), flush=True)


def machine() -> str:
    """The machine and how busy it is."""
    return f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
