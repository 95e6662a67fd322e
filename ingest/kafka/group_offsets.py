"""A group's committed offsets, written and read with patience. Blocking."""

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

REQUEST_TIMEOUT_S = 30.0
_RETRY_S = 0.05
TRANSIENT = {
    KafkaError.STALE_MEMBER_EPOCH,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError._WAIT_COORD,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._TRANSPORT,
}
"""The group is on the move, or its coordinator is just coming up: the same request may be made again."""


def commit(consumer: Consumer, offsets: Sequence[TopicPartition]) -> None:
    """Commits offsets; repeats while the group or its coordinator is on the move.

    Raises:
        KafkaException: refused, or no answer in time.
    """
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while offsets:
        error = _commit_once(consumer, offsets)
        if error is None:
            return
        if error.code() not in TRANSIENT or time.monotonic() > deadline:
            raise KafkaException(error)
        time.sleep(_RETRY_S)


def committed(consumer: Consumer, partitions: Sequence[TopicPartition]) -> list[tuple[int, str] | None]:
    """The committed offset and note of each partition, in the order asked; None where there is none.

    Raises:
        KafkaException: refused, or no answer in time.
    """
    if not partitions:
        return []
    answers = {
        (answer.topic, answer.partition): answer
        for answer in consumer.committed(list(partitions), timeout=REQUEST_TIMEOUT_S)
    }
    error = next((answer.error for answer in answers.values() if answer.error is not None), None)
    if error is not None:
        raise KafkaException(error)
    in_order = [answers[asked.topic, asked.partition] for asked in partitions]
    return [(answer.offset, answer.metadata or "") if answer.offset >= 0 else None for answer in in_order]


def _commit_once(consumer: Consumer, offsets: Sequence[TopicPartition]) -> KafkaError | None:
    try:
        answers = consumer.commit(offsets=list(offsets), asynchronous=False) or []
    except KafkaException as failure:
        return failure.args[0]
    return next((answer.error for answer in answers if answer.error is not None), None)
