"""What can go wrong between a service and the log.

ForgestreamError
└── IngestError
    ├── BrokerUnavailable      no answer from the brokers in time
    ├── DeliveryError          a record that the log did not acknowledge
    │   └── ProducerFull       not even queued: too much is waiting already
    ├── ConsumerFailed         reading cannot go on (rights, protocol, closed)
    │   └── OffsetLost         the wanted offset is no longer, or not yet, in the log
    ├── TransactionFailed      nothing of it is visible; the same work may be done again
    │   ├── TransactionStalled a step did not end; this producer is lost, a new one sorts it out
    │   └── Fenced             a newer producer with the same transactional id took over
    └── TopicMismatch          a topic is missing, or not as the registry says
"""

from schemas import ForgestreamError


class IngestError(ForgestreamError):
    """Something between a service and the log."""


class BrokerUnavailable(IngestError):
    """The brokers did not answer in time."""


class DeliveryError(IngestError):
    """A record was not acknowledged by the log."""


class ProducerFull(DeliveryError):
    """A record was refused because too much waits for acknowledgement."""


class ConsumerFailed(IngestError):
    """Reading cannot go on."""


class OffsetLost(ConsumerFailed):
    """An offset that was asked for lies outside of what the log holds."""


class TransactionFailed(IngestError):
    """A transaction was given up and undone; its work may be done again with the same producer."""


class TransactionStalled(TransactionFailed):
    """A step of a transaction did not end in time.

    Whether a commit took effect is unknown. The producer is of no use any more: a new one with the same transactional
    id completes or undoes what is open, and the log then says which.
    """


class Fenced(TransactionFailed):
    """A newer producer with the same transactional id took over; this one must stop."""


class TopicMismatch(IngestError):
    """A topic is missing, or differs from the registry."""
