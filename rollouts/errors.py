"""Errors of the launcher and of what it starts.

ForgestreamError
└── RolloutsError
    ├── TaskProblems           tasks that a user wrote, with file, line and field
    ├── StateInUse             another launcher works in the same state folder
    ├── RuntimeFault           the platform could not run a rollout: retried, never a reward
    │   └── HarnessMissing     a harness pack could not be installed
    └── VerifierError          the verifier failed: no reward
        └── VerifierTimeout    it did not end in time: no reward

A harness that fails is not an error of ours: it is data, and becomes an `end_reason`.
"""

from collections.abc import Sequence

from schemas import ForgestreamError


class RolloutsError(ForgestreamError):
    """Something in the launcher's reach went wrong."""


class TaskProblems(RolloutsError):
    """Tasks that cannot be used. The message has one line a problem; nothing was produced."""

    exit_status = 2

    def __init__(self, problems: Sequence[str], more: int = 0) -> None:
        lines = [*problems, f"… and {more} more"] if more else list(problems)
        super().__init__("\n".join(lines))
        self.problems = tuple(problems)


class StateInUse(RolloutsError):
    """Two launchers on one state folder would end each other's processes."""

    exit_status = 3


class RuntimeFault(RolloutsError):
    """The platform could not run a rollout."""


class HarnessMissing(RuntimeFault):
    """A harness pack could not be installed."""


class VerifierError(RolloutsError):
    """The verifier gave no verdict."""


class VerifierTimeout(VerifierError):
    """The verifier did not end in time."""
