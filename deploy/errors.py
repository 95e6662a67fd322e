"""Errors of the running system.

ForgestreamError
└── DeployError
    ├── ConfigError            settings that are unknown or do not fit (exit status 2)
    ├── AlreadyRunning         another `forgestream up` holds the state folder (3)
    ├── NotRunning             nothing to stop, or to talk to (3)
    ├── MissingPart            something must be installed first (3)
    └── StackFailed            a service could not start, or crashes again and again (1)
"""

from schemas import ForgestreamError


class DeployError(ForgestreamError):
    """The system cannot be started, stopped or described."""


class ConfigError(DeployError):
    """Settings that are unknown or do not fit; one line each, with where it came from."""

    exit_status = 2


class AlreadyRunning(DeployError):
    """Another stack holds the state folder."""

    exit_status = 3


class NotRunning(DeployError):
    """There is no running stack."""

    exit_status = 3


class MissingPart(DeployError):
    """Something must be installed first; the message has the command."""

    exit_status = 3


class StackFailed(DeployError):
    """A service could not start, or crashes again and again."""
