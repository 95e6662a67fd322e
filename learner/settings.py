"""Settings of the learner. Imports neither torch nor verl: every command reads them."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ingest.service.settings import ServiceSettings


class LearnerSettings(ServiceSettings):
    """How trajectories become policy versions."""

    port: int = Field(default=8704, ge=0, le=65535)
    """Port of `/livez`, `/readyz` and `/metrics`."""

    run_id: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of this training run. A restart with the same name continues it; a new name starts from the base model."""
    runs: Path = Path(".forgestream/runs")
    """Folder of all runs: `<runs>/<run_id>/checkpoints` and `<runs>/<run_id>/policies`."""
    policy_id: str = Field(default="policy", min_length=1)
    """The policy that is trained; trajectories of other policies are passed over."""
    model: Path = Path(".forgestream/models/smollm2")
    """Folder of the base model in Hugging Face format."""

    groups_per_step: int = Field(default=2, ge=1)
    """Groups that one optimizer step trains. The launcher must allow at least as many in flight."""
    max_steps: int = Field(default=0, ge=0)
    """Optimizer steps of the run, after which groups are only counted; 0 is no limit."""
    max_staleness: int = Field(default=2, ge=0)
    """A group is trained if the learner is at most this many versions ahead of its oldest token."""
    group_deadline_s: float = Field(default=1800.0, gt=0)
    """How long after its first trajectory a group may stay incomplete."""
    partial_groups: Literal["drop", "keep"] = "drop"
    """At the deadline: give the group up, or train it if two trainable members are there."""
    max_sequence_tokens: int = Field(default=32_768, ge=2)
    """Trajectories with a longer sequence are left out; bounds the memory of a step."""

    lora_rank: int = Field(default=0, ge=0)
    """Rank of the LoRA adapters that are trained; 0 trains all parameters."""
    lr: float = Field(default=1e-6, gt=0)
    """Learning rate, constant. 1e-6 suits full training, 1e-3 a LoRA of a small model."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of the rollouts. Recorded log-probabilities are of the scaled distribution, so training
    must scale alike; a wrong value shows as a large `delta_mean`."""
    updates_per_batch: int = Field(default=1, ge=1, le=4)
    """Passes of the optimizer over the batch of one step."""
    norm_adv_by_std: bool = True
    """Divide advantages by the group's standard deviation, as GRPO and veRL do; false centres only (Dr. GRPO)."""
    loss_weighting: Literal["token", "rollout"] = "token"
    """`token`: every trained token counts the same, and a rollout of several samples counts as one of their mean
    length. `rollout`: every rollout counts the same, whatever its length."""
    correction: Literal["token_is", "bypass"] = "token_is"
    """Mismatch between engine and trainer. `token_is`: old log-probabilities are the trainer's own, and truncated
    importance weights against the recorded ones scale the loss. `bypass`: the recorded ones are the old ones."""
    is_threshold: float = Field(default=2.0, gt=1)
    """Where importance weights are truncated."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """PPO's lower clip. Like the other two it bites where π_old is not the policy in training: with `bypass`, or from
    the second update of a batch on."""
    clip_high: float = Field(default=0.28, gt=0)
    """PPO's upper clip; above the lower one it leaves room for rare tokens (DAPO)."""
    dual_clip: float = Field(default=3.0, gt=1)
    """Bound of the ratio where the advantage is negative (dual-clip PPO)."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest gradient norm."""
    micro_batch_tokens: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward pass; a longer sequence goes alone."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """What forward and backward passes compute in; weights and optimizer are fp32. `auto`: bf16 on a GPU, fp32 on a
    CPU. bf16 pays on CPUs with AMX, at the price of a larger `delta_mean`; on others it is many times slower."""
    threads: int = Field(default=1, ge=1)
    """CPU threads of one computation. More than there are free cores makes it many times slower."""
    seed: int = 0
    """Seed of adapter initialisation and of the reward shuffle."""
    shuffle_rewards: bool = False
    """Negative control: rewards change owners within each step's batch, so that nothing can be learned."""

    checkpoints_kept: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on disk."""
    policies_kept: int = Field(default=3, ge=2)
    """Newest weight folders that stay on disk; engines may still read the one before the newest."""

    @property
    def run_folder(self) -> Path:
        """Where this run keeps everything."""
        return self.runs / self.run_id
