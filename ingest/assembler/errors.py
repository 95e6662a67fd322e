"""Errors of the assembler.

ForgestreamError
└── BrokenTree             a rollout's completions do not fit together: data, not a crash; it is not trained
"""

from schemas import ForgestreamError


class BrokenTree(ForgestreamError):
    """The completions of a rollout do not fit together. Becomes the trajectory's `reason`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        """One of `broken_chain`, `logprobs_misaligned`, `logprobs_not_finite`, `versions_misaligned`, `too_large`."""
