"""Where a learner begins: at its newest checkpoint, or, for a new run, at the base model.

Checks first that settings, checkpoint and log belong together. It would be easy to go on anyway; it would break the
promise that versions only grow and that no group is trained twice.
"""

import json
from pathlib import Path

from ingest.kafka.consumer import END, RecordConsumer, TopicPartition
from ingest.kafka.settings import KafkaSettings
from learner.checkpoints import LearnerState
from learner.errors import RunFolderError, RunMismatch
from learner.groups import CollectorState
from learner.settings import LearnerSettings
from schemas import Policy
from schemas.topics import TRAJECTORIES

PARTITIONS: tuple[TopicPartition, ...] = tuple((TRAJECTORIES, number) for number in range(TRAJECTORIES.partitions))


def vocabulary_of(model: Path) -> int:
    """Size of the base model's vocabulary.

    Raises:
        RunFolderError: there is no model.
    """
    try:
        return int(json.loads((model / "config.json").read_text())["vocab_size"])
    except OSError as error:
        raise RunFolderError(
            f"no base model in {model}: make one with `python -m learner.models smollm2 {model}`, or set learner.model"
        ) from error
    except (ValueError, KeyError) as error:
        raise RunFolderError(f"{model / 'config.json'} names no vocab_size: is it a model's configuration?") from error


def check_resumed(settings: LearnerSettings, state: LearnerState, announced: Policy | None) -> None:
    """Whether a checkpoint may be continued under these settings and with what the log knows.

    Raises:
        RunMismatch: it may not; the message says why.
    """
    wanted = {
        "run_id": settings.run_id,
        "policy_id": settings.policy_id,
        "base_model": settings.model.name,
        "lora_rank": settings.lora_rank,
    }
    for name, value in wanted.items():
        if (found := getattr(state, name)) != value:
            raise RunMismatch(
                f"the checkpoint in {settings.run_folder} was made with {name} {found!r}, the settings say {value!r}: "
                "change them back, or choose another run_id"
            )
    if announced is None or (announced.version <= state.policy_version and announced.run_id == state.run_id):
        return
    if announced.run_id != state.run_id and announced.version < state.first_version:
        return  # this run has not announced its first version yet
    raise RunMismatch(
        f"policy {settings.policy_id} is at version {announced.version} of run {announced.run_id}, the checkpoint in "
        f"{settings.run_folder} at {state.policy_version} of run {state.run_id}: bring the newer checkpoint back, or "
        "choose another run_id"
    )


async def check_offsets(kafka: KafkaSettings, settings: LearnerSettings, state: LearnerState) -> None:
    """Whether the log still reaches as far as the checkpoint has read.

    Raises:
        RunMismatch: it does not: it was reset.
    """
    ends = await _ends(kafka)
    for partition, offset in state.collector.offsets.items():
        if offset > ends.get(partition, 0):
            raise RunMismatch(
                f"the checkpoint in {settings.run_folder} has read trajectories.v1, partition {partition}, up to "
                f"{offset}, but the log ends at {ends.get(partition, 0)}: it was reset; choose another run_id"
            )


async def new_state(kafka: KafkaSettings, settings: LearnerSettings, announced: Policy | None) -> LearnerState:
    """The state of a run that begins.

    The first run of a policy reads the log from its beginning. A later one begins where the log ends: what is there
    was sampled by other weights.

    Raises:
        RunMismatch: the run has begun before, and its checkpoints are gone.
    """
    policies = settings.run_folder / "policies"
    has_weights = policies.is_dir() and any(path.name.isdecimal() for path in policies.iterdir())
    if has_weights or (announced and announced.run_id == settings.run_id):
        raise RunMismatch(
            f"run {settings.run_id} has made policy versions, but {settings.run_folder} holds no checkpoint: bring it "
            "back, or choose another run_id"
        )
    offsets = await _ends(kafka) if announced else {}
    return LearnerState(
        run_id=settings.run_id,
        policy_id=settings.policy_id,
        base_model=settings.model.name,
        lora_rank=settings.lora_rank,
        first_version=announced.version + 1 if announced else 0,
        step=0,
        collector=CollectorState(offsets=offsets),
    )


async def _ends(kafka: KafkaSettings) -> dict[int, int]:
    async with RecordConsumer.assign(kafka, dict.fromkeys(PARTITIONS, END)) as consumer:
        return {partition: offset for (_, partition), offset in (await consumer.end_offsets(PARTITIONS)).items()}
