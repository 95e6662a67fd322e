"""Errors of serving, named by the boundary that failed.

ForgestreamError
└── ServingError
    ├── ModelRefused        the model folder cannot be served by this engine
    ├── RequestRefused      a request that breaks the contract; `status` is its HTTP status
    ├── WeightsRefused      new weights that do not fit the served model; nothing was changed
    ├── EngineUnreachable   the engine does not answer, or answers with an error of its own
    └── VllmFailed          vLLM cannot be started, or ended by itself
"""

from schemas import ForgestreamError


class ServingError(ForgestreamError):
    """Something between a policy version and the tokens it samples."""


class ModelRefused(ServingError):
    """A model folder that this engine cannot serve."""


class RequestRefused(ServingError):
    """A request that breaks the contract."""

    def __init__(self, message: str, *, status: int = 400, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.parameter = parameter


class WeightsRefused(ServingError):
    """Weights that do not fit the served model. Nothing was changed."""


class EngineUnreachable(ServingError):
    """The engine does not answer, or answers with an error; `status` is then its HTTP status."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class VllmFailed(ServingError):
    """vLLM cannot be started, or ended by itself."""
