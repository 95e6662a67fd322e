"""Errors of the learner.

ForgestreamError
└── LearnerError
    ├── RunFolderError      the run's folder cannot be used: another learner, a full disk, a missing model
    ├── RunMismatch         settings, checkpoint and log do not belong together
    └── MisalignedSample    ids, mask and log-probabilities that do not fit each other (data, not a crash)
"""

from schemas import ForgestreamError


class LearnerError(ForgestreamError):
    """Something between trajectories and policy versions."""


class RunFolderError(LearnerError):
    """The run's folder, or the base model, cannot be used."""


class RunMismatch(LearnerError):
    """Settings, checkpoint and log tell different stories; going on would break the lineage of versions."""


class MisalignedSample(LearnerError):
    """A sample whose ids, mask and log-probabilities do not fit each other. Its trajectory is left out."""
