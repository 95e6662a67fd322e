"""Checkpoints: trainable weights, optimizer, random state, and how far the log was consumed, in one folder.

    checkpoints/step-00000012/state.json     LearnerState
    checkpoints/step-00000012/…              what the worker saved

The state is a function of the prefix of trajectories.v1 that lies below `collector.offsets`, and of the groups named in
`collector.settled`. The newest folder is the truth; what was announced may be one version behind it, never ahead.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from learner.durable import durable_folder, sweep
from learner.errors import RunFolderError, RunMismatch
from learner.groups import CollectorState
from schemas import Step

STATE_FILE = "state.json"
_NAME = re.compile(r"step-(\d{8,})")
_FORMAT = 1


class LearnerState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a checkpoint that is not a tensor."""

    format: int = _FORMAT
    run_id: str
    policy_id: str
    base_model: str
    lora_rank: int
    first_version: int
    """Version of the base model in this run: 0, unless another run trained the policy before."""
    step: int
    """Optimizer steps done."""
    collector: CollectorState
    record: Step | None = None
    """What is to be announced about the step; None for the base model."""

    @property
    def policy_version(self) -> int:
        """The version that these weights are."""
        return self.first_version + self.step


class Checkpoints:
    """The checkpoints of one run.

    Args:
        folder: Where they lie.
        kept: How many of the newest stay.
    """

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder
        self._kept = kept
        sweep(folder)

    def newest(self) -> tuple[Path, LearnerState] | None:
        """The newest checkpoint; None when the run has not begun.

        Raises:
            RunMismatch: its state cannot be read.
        """
        folders = self._all()
        if not folders:
            return None
        path = folders[-1] / STATE_FILE
        try:
            state = msgspec.json.decode(path.read_bytes(), type=LearnerState)
        except (OSError, msgspec.DecodeError) as error:
            raise RunMismatch(
                f"{path} cannot be read ({error}): remove that checkpoint to go on from the one before it"
            ) from error
        if state.format != _FORMAT:
            raise RunMismatch(f"{path} has format {state.format}, this learner reads {_FORMAT}: update forgestream")
        return folders[-1], state

    def write(self, state: LearnerState, save: Callable[[Path], None]) -> Path:
        """Make a checkpoint of what `save` writes into the folder that it is given. Old ones go.

        Raises:
            RunFolderError: the disk refuses, or the step has a checkpoint already: then another learner made it.
        """
        final = self._folder / f"step-{state.step:08d}"
        if final.exists():
            raise RunFolderError(f"{final} exists already: another learner works in this folder, stop one of them")
        with durable_folder(final) as scratch:
            save(scratch)
            (scratch / STATE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        for old in self._all()[: -self._kept]:
            shutil.rmtree(old, ignore_errors=True)
        return final

    def _all(self) -> list[Path]:
        if not self._folder.is_dir():
            return []
        found = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))
