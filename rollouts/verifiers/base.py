"""What a verifier is given and what it answers."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rollouts.errors import VerifierError

ENDED_BY_ITSELF = "stop"
"""The `finish_reason` of an answer that the model ended, rather than a budget."""


@dataclass(frozen=True)
class Submission:
    """What a harness left behind."""

    rollout_id: str
    attempt: int
    answer: str
    """Its final text."""
    finish_reason: str
    """Why that text ended: `stop`, or `length`, `max_turns`, …"""
    workspace: Path
    """Its working folder as it was left."""


@dataclass(frozen=True)
class Verdict:
    """A finite reward and its named components."""

    reward: float
    rewards: dict[str, float] = field(default_factory=dict)
    message: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of what a task may say to its verifier."""


class Verifier(Protocol):
    """Judges submissions of one kind; options are what the task gave, already checked."""

    def expect(self) -> None:
        """A rollout that it will judge is about to run: get ready, without waiting."""
        ...

    async def verify(self, options: Any, submission: Submission) -> Verdict:
        """The verdict.

        Raises:
            VerifierTimeout: it did not end in time.
            VerifierError: it failed otherwise.
        """
        ...


def scored(score: float, submission: Submission, *, require_stop: bool) -> Verdict:
    """A verdict from a score; with `require_stop`, an answer that a budget cut off earns nothing.

    Raises:
        VerifierError: the score is no finite number.
    """
    if not math.isfinite(score):
        raise VerifierError(f"the verifier's score is no finite number: {score}")
    if not require_stop:
        return Verdict(score, {"score": score})
    stopped = 1.0 if submission.finish_reason == ENDED_BY_ITSELF else 0.0
    return Verdict(score * stopped, {"score": score, "stopped": stopped})
