"""Everything that the learner uses of veRL 0.9.1, in one place: what to look at when veRL is updated.

veRL, ray and peft warn about each other, print to standard output and log each file they save. Nothing of it is for our
users: what matters comes back as a metric or an exception.
"""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings and nothing on standard output from what runs in the block."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


os.environ.setdefault("VERL_LOGGING_LEVEL", "WARN")  # veRL reads it while it is imported

with quiet():
    from verl.trainer.config import CheckpointConfig
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.utils import tensordict_utils
    from verl.utils.dataset.dataset_utils import DatasetPadMode
    from verl.utils.metric import AggregationType, Metric
    from verl.workers.config import (
        FSDPActorConfig,
        FSDPEngineConfig,
        FSDPOptimizerConfig,
        HFModelConfig,
        PolicyLossConfig,
        TrainingWorkerConfig,
    )
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import response_from_nested

    from learner import verl_cpu  # noqa: F401  registers the CPU before anything of veRL asks for a platform

__all__ = [
    "AggregationType",
    "CheckpointConfig",
    "DatasetPadMode",
    "FSDPActorConfig",
    "FSDPEngineConfig",
    "FSDPOptimizerConfig",
    "HFModelConfig",
    "Metric",
    "PolicyLossConfig",
    "TrainingWorker",
    "TrainingWorkerConfig",
    "compute_grpo_outcome_advantage",
    "compute_rollout_correction_and_rejection_mask",
    "ppo_loss",
    "quiet",
    "response_from_nested",
    "tensordict_utils",
]
