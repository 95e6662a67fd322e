"""Which checkpoints may be continued, under which settings, with what the log knows."""

from pathlib import Path

import pytest

from ingest.kafka.settings import KafkaSettings
from learner.checkpoints import LearnerState
from learner.errors import RunFolderError, RunMismatch
from learner.groups import CollectorState
from learner.recovery import check_resumed, new_state, vocabulary_of
from learner.settings import LearnerSettings
from schemas import Policy

SETTINGS = LearnerSettings(run_id="b", model=Path("models/base"), lora_rank=4)
STATE = LearnerState(
    run_id="b", policy_id="policy", base_model="base", lora_rank=4, first_version=10, step=3, collector=CollectorState()
)


def announced(version: int, run_id: str = "b") -> Policy:
    return Policy(policy_id="policy", version=version, run_id=run_id)


@pytest.mark.parametrize("policy", [announced(13), announced(12), announced(9, "a"), None])
def test_checkpoint_at_or_ahead_of_what_was_announced_goes_on(policy: Policy | None) -> None:
    check_resumed(SETTINGS, STATE, policy)


@pytest.mark.parametrize("policy", [announced(14), announced(10, "c"), announced(14, "c")])
def test_checkpoint_behind_what_was_announced_is_refused(policy: Policy) -> None:
    with pytest.raises(RunMismatch, match=f"is at version {policy.version} of run {policy.run_id}"):
        check_resumed(SETTINGS, STATE, policy)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lora_rank": 8}, "lora_rank 4"),
        ({"model": Path("models/x")}, "base_model 'base'"),
        ({"policy_id": "q"}, "'policy'"),
    ],
)
def test_changed_settings_are_refused(change: dict, says: str) -> None:
    with pytest.raises(RunMismatch, match=says):
        check_resumed(SETTINGS.model_copy(update=change), STATE, announced(13))


async def test_first_run_begins_at_version_0_with_the_whole_log(tmp_path: Path) -> None:
    state = await new_state(KafkaSettings(), SETTINGS.model_copy(update={"runs": tmp_path}), None)
    assert (state.policy_version, state.step, state.collector.offsets) == (0, 0, {})


async def test_run_whose_checkpoints_are_gone_is_refused(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"runs": tmp_path})
    with pytest.raises(RunMismatch, match="holds no checkpoint"):
        await new_state(KafkaSettings(), settings, announced(2))
    (tmp_path / "b/policies/1").mkdir(parents=True)
    with pytest.raises(RunMismatch, match="holds no checkpoint"):
        await new_state(KafkaSettings(), settings, None)


def test_missing_model_names_the_command_that_makes_one(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"python -m learner\.models smollm2"):
        vocabulary_of(tmp_path)
