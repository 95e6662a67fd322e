"""What `up` shows: a live view on a terminal, JSON lines elsewhere."""

import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console
from rich.live import Live

from deploy.local.loop import LoopState
from deploy.local.supervisor import StackEvent
from deploy.local.view import render

Services = Sequence[Mapping[str, Any]]
_NOTES = 6


class Reporter(Protocol):
    """Shows a running stack; used as a context manager."""

    interval_s: float
    """Time between two calls of `status`."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def event(self, event: StackEvent) -> None:
        """Something happened to a service."""

    def note(self, event: str, **fields: Any) -> None:
        """Something happened to the stack."""

    def status(self, state: LoopState, services: Services) -> None:
        """How things are now."""


class JsonReporter:
    """One JSON object a line on standard output: `at`, `event`, and what belongs to it."""

    interval_s = 5.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def event(self, event: StackEvent) -> None:
        """A service started, got ready, crashed or stopped."""
        fields = {"pid": event.pid, "elapsed_s": round(event.elapsed_s, 2), "message": event.message}
        self.note(event.change, service=event.service, **{name: value for name, value in fields.items() if value})

    def note(self, event: str, **fields: Any) -> None:
        """Any other event."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        print(json.dumps({"at": at, "event": event, **fields}), flush=True)

    def status(self, state: LoopState, services: Services) -> None:
        """The figures of the loop."""
        self.note("status", **state.snapshot(time.time()), services=list(services))


class TerminalReporter:
    """A view that redraws itself, and disappears at the end; what happened last stays visible in it."""

    interval_s = 0.5

    def __init__(self, title: str) -> None:
        self._title = title
        self._notes: deque[str] = deque(maxlen=_NOTES)
        self._live = Live(console=Console(), auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()
        for line in self._notes:
            self._live.console.print(line, markup=False, highlight=False)

    def event(self, event: StackEvent) -> None:
        """A service started, got ready, crashed or stopped."""
        after = f" after {event.elapsed_s:.1f} s" if event.change == "ready" else ""
        message = f": {event.message.splitlines()[0]}" if event.message else ""
        self._add(f"{event.service} {event.change}{after}{message}")

    def note(self, event: str, **fields: Any) -> None:
        """Any other event."""
        self._add(f"{event}  " + "  ".join(f"{name} {value}" for name, value in fields.items()))

    def status(self, state: LoopState, services: Services) -> None:
        """Draw the next frame."""
        frame = render(state, services, time.time(), title=self._title, notes=self._notes)
        self._live.update(frame, refresh=True)

    def _add(self, line: str) -> None:
        self._notes.append(f"{datetime.now():%H:%M:%S}  {line}")
