"""How commands print rows: a table for people, JSON lines or CSV for programs."""

import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def print_rows(rows: Iterable[Row], columns: Sequence[str], *, as_json: bool = False, as_csv: bool = False) -> None:
    """Print rows with these columns, in this order, on standard output."""
    rows = list(rows)
    if as_json:
        for row in rows:
            print(json.dumps({name: row.get(name) for name in columns}, default=_plain, ensure_ascii=False))
    elif as_csv:
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows([row.get(name) for name in columns] for row in rows)
    else:
        print("\n".join(table(rows, columns)))


def table(rows: Sequence[Row], columns: Sequence[str], most_width: int = 80) -> list[str]:
    """Lines of an aligned table; numbers to the right, long values cut."""
    cells = [[_shown(row.get(name), most_width) for name in columns] for row in rows]
    numeric = [all(_is_number(row.get(name)) for row in rows) and bool(rows) for name in columns]
    widths = [max(len(line[i]) for line in [list(columns), *cells]) for i in range(len(columns))]
    heads = [_aligned(name, width, right) for name, width, right in zip(columns, widths, numeric, strict=True)]
    lines = ["  ".join(heads), "  ".join("─" * width for width in widths)]
    for line in cells:
        parts = zip(line, widths, numeric, strict=True)
        lines.append("  ".join(_aligned(text, width, right) for text, width, right in parts))
    return [line.rstrip() for line in lines]


def say(text: str) -> None:
    """A line for people, on standard error: standard output is for results."""
    print(text, file=sys.stderr, flush=True)


def _aligned(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)


def _shown(value: Any, most_width: int) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:.0f}"
    if isinstance(value, dict | list | tuple):
        value = json.dumps(value, default=_plain, ensure_ascii=False)
    text = str(value).replace("\n", "⏎")
    return text if len(text) <= most_width else text[: most_width - 1] + "…"


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else str(value)
