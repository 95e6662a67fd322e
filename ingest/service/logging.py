"""JSON logs: one line an event on standard error, with the service's name and every id bound by the caller.

`structlog.contextvars.bind_contextvars(rollout_id=…)` adds ids to all lines of the current task. Libraries that use
the standard `logging` module come out in the same shape, from warnings up.
"""

import json
import logging
import sys
from typing import Any

import structlog
from structlog.typing import FilteringBoundLogger


def configure_logging(service: str, level: str = "info") -> FilteringBoundLogger:
    """Send the logs of this process to standard error as JSON lines. Returns the service's logger.

    Keys of a line: `at` (UTC, µs), `level`, `service`, `event`, then whatever was bound.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _named(service),
                structlog.processors.JSONRenderer(serializer=_dumps),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    ours = logging.getLogger("forgestream")
    ours.setLevel(level.upper())
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        cache_logger_on_first_use=False,  # so that a test, or a second service in one process, can configure again
    )
    return structlog.get_logger("forgestream")


def _named(service: str) -> Any:
    def add_service(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        first = {key: event.pop(key) for key in ("at", "level") if key in event}
        return {**first, "service": service, "event": event.pop("event", ""), **event}

    return add_service


def _dumps(event: dict[str, Any], **_options: Any) -> str:
    return json.dumps(event, default=str, ensure_ascii=False)
