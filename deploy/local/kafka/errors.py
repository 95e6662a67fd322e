"""What can go wrong with the embedded broker.

ForgestreamError
└── EmbeddedBrokerError
    ├── ToolMissing      no Java, or no Maven
    ├── InstallFailed    the jars could not be fetched, or are not the ones that were pinned
    ├── HomeInUse        another broker runs on the same folder
    ├── PortTaken        the wanted port belongs to another process
    ├── BrokerDied       the broker's process ended by itself
    └── StartTimeout     it runs, but does not answer
"""

from schemas import ForgestreamError


class EmbeddedBrokerError(ForgestreamError):
    """The embedded broker cannot be had."""


class ToolMissing(EmbeddedBrokerError):
    """A program that the broker needs is not on this machine."""


class InstallFailed(EmbeddedBrokerError):
    """The broker's jars could not be fetched, or differ from the pinned ones."""


class HomeInUse(EmbeddedBrokerError):
    """Another broker holds this home folder."""


class PortTaken(EmbeddedBrokerError):
    """The wanted port belongs to another process."""


class BrokerDied(EmbeddedBrokerError):
    """The broker's process ended without being asked to."""


class StartTimeout(EmbeddedBrokerError):
    """The broker's process runs, but did not answer in time."""
