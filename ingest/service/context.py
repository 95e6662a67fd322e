"""What a running service is handed: its log, its metrics, and how it says that it is ready or asked to stop."""

import asyncio
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry
from structlog.typing import FilteringBoundLogger


@dataclass
class ServiceContext:
    """One running service. `ready` and `not_ready` decide what `/readyz` answers."""

    name: str
    log: FilteringBoundLogger
    registry: CollectorRegistry
    stopping: asyncio.Event
    """Set by the first SIGTERM or SIGINT: finish what is in hand and return."""
    reason: str | None = field(default="starting")
    """Why the service is not ready; None when it is."""

    @property
    def is_ready(self) -> bool:
        """Whether the service can work."""
        return self.reason is None

    def ready(self) -> None:
        """Say that the service can work from now on."""
        if not self.is_ready:
            self.reason = None
            self.log.info("ready")

    def not_ready(self, reason: str) -> None:
        """Say that the service cannot work for now, and why."""
        if self.reason != reason:
            self.reason = reason
            self.log.warning("not ready", reason=reason)
