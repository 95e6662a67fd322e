"""Errors of the service skeleton.

ForgestreamError
└── ServiceError           a service cannot start or go on
    └── PortInUse          its port is taken by another process
"""

from schemas import ForgestreamError


class ServiceError(ForgestreamError):
    """A service cannot start or go on."""


class PortInUse(ServiceError):
    """The port that a service should listen on is taken."""

    exit_status = 3

    def __init__(self, service: str, host: str, port: int, holder: str = "") -> None:
        taken_by = f" by {holder}" if holder else ""
        super().__init__(
            f"{service}: port {port} on {host} is in use{taken_by}: stop that process, "
            f"or choose another port with FORGESTREAM_{service.upper()}__PORT"
        )
