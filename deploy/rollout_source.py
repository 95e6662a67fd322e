"""Where `forgestream rollouts` gets its records: the log of a running stack, or the archive of one that stopped."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from deploy.archive import ask_archive
from ingest.kafka.consumer import read_all
from ingest.kafka.settings import KafkaSettings
from schemas import Completion, Record, RolloutEvent, Topic, Trajectory
from schemas.topics import COMPLETIONS, ROLLOUTS, TRAJECTORIES

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class RolloutRecords:
    """All that is known of rollouts. Records from the archive come without token ids, masks and logprobs."""

    events: list[RolloutEvent]
    completions: list[Completion]
    trajectories: list[Trajectory]


def from_log(kafka: KafkaSettings) -> RolloutRecords:
    """Everything that is on the log now.

    Raises:
        IngestError: it cannot be read.
    """
    return asyncio.run(_from_log(kafka))


def from_archive(root: Path) -> RolloutRecords:
    """Everything that was archived.

    Raises:
        AnalyticsError: there is no archive.
    """
    return RolloutRecords(
        _rows(root, RolloutEvent, "SELECT * FROM rollout_events ORDER BY _partition, _offset"),
        _rows(
            root,
            Completion,
            "SELECT * EXCLUDE (prompt_token_ids, completion_token_ids, rollout_logprobs) FROM completions",
        ),
        _rows(root, Trajectory, "SELECT * EXCLUDE (samples) FROM trajectories"),
    )


async def _from_log(kafka: KafkaSettings) -> RolloutRecords:
    async def records(topic: Topic) -> list:
        return [one.record for one in await read_all(kafka, topic)]

    return RolloutRecords(await records(ROLLOUTS), await records(COMPLETIONS), await records(TRAJECTORIES))


def _rows(root: Path, record: type[R], sql: str) -> list[R]:
    return [msgspec.convert(row, record) for row in ask_archive(root, sql)]
