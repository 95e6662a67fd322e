"""What a harness pack is: how to install, start and read one agent program."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rollouts.runtimes.base import Ended, Places


class PackOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a task may say to its harness."""


@dataclass(frozen=True)
class Assignment:
    """What a harness is to do, and where its model is."""

    instruction: str
    base_url: str
    """OpenAI-compatible base URL, ending in `/v1`; it carries the rollout's token already."""
    token: str
    """The rollout's token, where a harness wants an API key."""
    model: str
    places: Places


@dataclass(frozen=True)
class Start:
    """How to start a harness for one assignment."""

    command: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    home_files: dict[str, bytes] = field(default_factory=dict)
    preload: str = ""
    """See `Job.preload`."""


@dataclass(frozen=True)
class Result:
    """What a harness says about its end."""

    answer: str | None = None
    """Its final text; None when it left none."""
    finish_reason: str = ""
    """`stop` when the model ended that text by itself; else `length`, `max_turns`, …; empty when not told."""
    error: str = ""
    """Why it failed, in one line; empty when it did not."""
    error_code: str = ""
    """The code of the proxy's refusal, where the failure was one: `call_limit`, …"""
    unreachable: bool = False
    """It failed because the proxy could not be reached or failed itself: not the agent's fault."""


class HarnessPack(Protocol):
    """One agent program. Stateless."""

    @property
    def name(self) -> str:
        """The name that tasks use."""
        ...

    @property
    def version(self) -> str:
        """The pinned version."""
        ...

    @property
    def options(self) -> type[PackOptions]:
        """What tasks may set."""
        ...

    async def install(self, harnesses: Path) -> None:
        """Make sure that the program is below this folder; quick when it is.

        Raises:
            HarnessMissing: it cannot be installed; the message says what to do.
        """
        ...

    def start(self, assignment: Assignment, options: Any) -> Start:
        """How to start it."""
        ...

    def read(self, ended: Ended) -> Result:
        """What it says about its end, from its output and the files it left."""
        ...
