"""Why a rollout ended, from what its process, its harness and the log tell. Pure."""

from dataclasses import dataclass

from rollouts.harnesses.base import Result
from rollouts.runtimes.base import Stop
from schemas import EndReason

_STOPS = {
    Stop.WALL: (EndReason.WALL_LIMIT, "ran longer than its wall limit"),
    Stop.STARTUP: (EndReason.STARTUP_LIMIT, "made no model call within its startup limit"),
    Stop.OUTPUT: (EndReason.OUTPUT_LIMIT, "wrote more than the launcher allows"),
}
_REFUSALS = {
    "call_limit": EndReason.CALL_LIMIT,
    "token_limit": EndReason.TOKEN_LIMIT,
    "context_length": EndReason.CONTEXT_LENGTH,
    "context_length_exceeded": EndReason.CONTEXT_LENGTH,
}
_PLATFORM = {"engine_unavailable", "engine_refused", "not_recorded", "proxy_stopping", "internal_error", "unaligned"}
"""Codes of failed completions that are not the agent's fault."""


@dataclass(frozen=True)
class Signs:
    """All that is known about how a harness ended."""

    exit_code: int
    stop: Stop | None
    result: Result
    calls: int | None
    """Completions in the log; None when they could not be counted."""
    last_error: str = ""
    """Error of the newest completion, if it failed: the proxy's code, a colon, and words."""

    @property
    def last_code(self) -> str:
        """The code of `last_error`."""
        return self.last_error.split(":", 1)[0].strip()


def classify(signs: Signs) -> tuple[EndReason, str]:
    """End reason and one line for people. COMPLETED means: now the verifier decides."""
    if signs.stop is not None:
        return _STOPS[signs.stop]
    failed = signs.exit_code != 0 or bool(signs.result.error)
    if failed and (refusal := _refusal(signs)):
        return refusal, signs.result.error or signs.last_error
    if failed and signs.result.unreachable:
        return EndReason.INFRASTRUCTURE, f"the proxy could not be reached: {signs.result.error}"
    if failed and signs.last_code in _PLATFORM:
        return EndReason.INFRASTRUCTURE, f"the last model call failed: {signs.last_error}"
    if failed:
        return EndReason.HARNESS_ERROR, _failure(signs)
    if signs.calls == 0:
        return EndReason.NO_CALLS, "ended without one model call"
    return EndReason.COMPLETED, ""


def _refusal(signs: Signs) -> EndReason | None:
    """The limit that the proxy refused to go beyond, as the harness or the log names it."""
    return _REFUSALS.get(signs.result.error_code) or _REFUSALS.get(signs.last_code)


def _failure(signs: Signs) -> str:
    how = f"killed by signal {-signs.exit_code}" if signs.exit_code < 0 else f"exit status {signs.exit_code}"
    return f"{how}: {signs.result.error}" if signs.result.error else how
