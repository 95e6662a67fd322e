"""A finished rollout, assembled for training: trajectories.v1, and the assembler's progress: assembler.v1."""

from typing import Annotated

from schemas.completions import VersionRun
from schemas.record import Record, doc
from schemas.rollouts import EndReason


class Sample(Record, frozen=True, kw_only=True):
    """One training sequence: a path from a root of the rollout's message tree to a leaf.

    `token_ids`, `loss_mask` and `rollout_logprobs` have the same length; where the mask is 0 the logprob is 0.
    """

    branch: Annotated[int, doc("Number of the branch, from 0.")] = 0
    token_ids: Annotated[bytes, doc("int32 LE: the whole sequence.")] = b""
    loss_mask: Annotated[bytes, doc("uint8: 1 where the policy sampled the token and this sample trains it.")] = b""
    rollout_logprobs: Annotated[bytes, doc("float32 LE: log-probability as sampled; 0 elsewhere.")] = b""
    policy_version_runs: Annotated[list[VersionRun], doc("Which version sampled which tokens of the sequence.")] = []
    completion_ids: Annotated[list[str], doc("The completions along the path, in order.")] = []


class Trajectory(Record, frozen=True, kw_only=True):
    """What one rollout became. Exactly one is written for each finished rollout."""

    trajectory_id: Annotated[str, doc("Unique name; derived from the rollout.")] = ""
    rollout_id: Annotated[str, doc("The rollout.")] = ""
    attempt: Annotated[int, doc("The attempt that finished.")] = 1
    task_id: Annotated[str, doc("The task attempted.")] = ""
    taskset: Annotated[str, doc("The task's set.")] = ""
    epoch: Annotated[int, doc("The task's epoch.")] = 0
    group_id: Annotated[str, doc("Rollouts compared with each other share it; the key of the record.")] = ""
    group_size: Annotated[int, doc("Rollouts in the group.")] = 1
    group_index: Annotated[int, doc("Place in the group, from 0.")] = 0
    policy_id: Annotated[str, doc("The policy that answered.")] = ""
    harness: Annotated[str, doc("Name of the harness.")] = ""
    harness_version: Annotated[str, doc("Its version.")] = ""
    evaluation: Annotated[bool, doc("True: measured only, never trained.")] = False
    reward: Annotated[float | None, doc("The verifier's verdict.")] = None
    rewards: Annotated[dict[str, float], doc("Named components of the reward.")] = {}
    end_reason: Annotated[EndReason, doc("Why the rollout ended.")] = EndReason.UNKNOWN
    trainable: Annotated[bool, doc("Whether the learner may use it.")] = False
    reason: Annotated[str, doc("Why it is not trainable; empty when it is.")] = ""
    samples: Annotated[list[Sample], doc("One a branch.")] = []
    completion_count: Annotated[int, doc("Completions of the attempt.")] = 0
    policy_version_min: Annotated[int | None, doc("Oldest version among the trained tokens.")] = None
    policy_version_max: Annotated[int | None, doc("Newest version among the trained tokens.")] = None
    prompt_tokens: Annotated[int, doc("Prompt tokens of all calls together.")] = 0
    completion_tokens: Annotated[int, doc("Sampled tokens of all calls together.")] = 0
    trained_tokens: Annotated[int, doc("Tokens with a loss mask of 1 over all samples.")] = 0
    cpu_s: Annotated[float | None, doc("CPU seconds of the harness.")] = None
    wall_s: Annotated[float | None, doc("Seconds from the harness's start to its end.")] = None
    engine_s: Annotated[float, doc("Seconds from dispatch to last token over all calls.")] = 0.0
    labels: Annotated[dict[str, str], doc("The task's labels.")] = {}
    assembled_at_us: Annotated[int, doc("When it was assembled, epoch µs.")] = 0


class AssemblerProgress(Record, frozen=True, kw_only=True):
    """How far the assembler is on one input partition; written in the transaction of what it emitted."""

    partition: Annotated[int, doc("The input partition; the key of the record.")] = 0
    rollouts_offset: Annotated[int, doc("Oldest offset of rollouts.v1 that an open rollout still needs.")] = 0
    completions_offset: Annotated[int, doc("Oldest offset of completions.v1 that an open rollout still needs.")] = 0
    finished: Annotated[list[str], doc("Rollouts beyond those offsets whose trajectory was already written.")] = []
