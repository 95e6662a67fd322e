"""What can go wrong in the proxy, named by the boundary that failed.

ForgestreamError
└── ProxyError
    ├── ModelFolderError       the model's tokenizer or chat template cannot be used: the proxy does not start
    ├── RequestError           a call that is not answered; a dialect writes it in its vendor's own shape
    ├── BridgeRefused          a recorded conversation cannot be continued exactly: it is rendered whole instead
    └── EngineError
        ├── EngineTrouble      the engine is away, restarting or cut the stream: tried again
        └── EngineRefused      the engine says that the request is wrong: trying again is of no use
"""

from enum import Enum

from schemas import ForgestreamError


class ProxyError(ForgestreamError):
    """Something between a harness, the proxy and an engine."""


class ModelFolderError(ProxyError):
    """The model folder lacks a file, or its tokenizer or template cannot be used."""


class BridgeRefused(ProxyError):
    """The rendering of what is new cannot be told apart from the recorded history with certainty."""


class Problem(Enum):
    """Why a call is not answered: the code that harness, record and log see, and the HTTP status that goes with it."""

    INVALID_REQUEST = "invalid_request", 400
    CONTEXT_LENGTH = "context_length_exceeded", 400
    CALL_LIMIT = "call_limit", 400
    TOKEN_LIMIT = "token_limit", 400
    UNAUTHENTICATED = "invalid_api_key", 401
    UNKNOWN_ROUTE = "unknown_url", 404
    WRONG_METHOD = "method_not_allowed", 405
    SEALED = "rollout_finished", 409
    TOO_LARGE = "request_too_large", 413
    INTERNAL = "internal_error", 500
    ENGINE_REFUSED = "engine_refused", 502
    ENGINE_AWAY = "engine_unavailable", 503
    NOT_RECORDED = "not_recorded", 503
    STOPPING = "proxy_stopping", 503

    def __init__(self, code: str, status: int) -> None:
        self.code = code
        self.status = status


class RequestError(ProxyError):
    """A call that is not answered."""

    def __init__(self, problem: Problem, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.problem = problem
        self.param = param
        """The field of the request that is to blame, where one is."""

    def __str__(self) -> str:
        return f"{self.problem.code}: {self.args[0]}"

    @property
    def message(self) -> str:
        """What the harness is told."""
        return self.args[0]


class EngineError(ProxyError):
    """Something between the proxy and an engine."""


class EngineTrouble(EngineError):
    """The engine is away, restarting, or cut the stream."""


class EngineRefused(EngineError):
    """The engine says that the request is wrong."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
