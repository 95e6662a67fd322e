"""What the learner tells: steps.v1 and policies.v1."""

from typing import Annotated

from schemas.record import Record, doc


class Step(Record, frozen=True, kw_only=True):
    """One optimizer step."""

    run_id: Annotated[str, doc("The learner's run; the key of the record.")] = ""
    step: Annotated[int, doc("Counts optimizer steps of the run from 1.")] = 0
    policy_id: Annotated[str, doc("The policy trained.")] = ""
    policy_version: Annotated[int, doc("The version that this step produced.")] = 0
    groups: Annotated[list[str], doc("Groups that this step trained.")] = []
    groups_dropped: Annotated[dict[str, str], doc("Groups given up since the step before, and why.")] = {}
    trajectory_ids: Annotated[list[str], doc("Trajectories that this step trained.")] = []
    trained_tokens: Annotated[int, doc("Tokens with a loss mask of 1.")] = 0
    offsets: Annotated[dict[str, int], doc("Next offset of each partition of trajectories.v1 after this step.")] = {}
    metrics: Annotated[dict[str, float], doc("Loss, reward, delta, staleness, gradient norm, …")] = {}
    timings: Annotated[dict[str, float], doc("Seconds a phase: wait, update, export, checkpoint.")] = {}
    at_us: Annotated[int, doc("When the step was durable, epoch µs.")] = 0


class Policy(Record, frozen=True, kw_only=True):
    """A version of the weights. It is announced only when they are durable."""

    policy_id: Annotated[str, doc("The policy; the key of the record.")] = ""
    version: Annotated[int, doc("Grows by one; 0 is the base model.")] = 0
    run_id: Annotated[str, doc("The learner's run.")] = ""
    step: Annotated[int, doc("The optimizer step that made it.")] = 0
    weights_uri: Annotated[str, doc("Where the weights lie: a folder as file:// URI.")] = ""
    weights_digest: Annotated[str, doc("sha256 over the weight files, in name order.")] = ""
    format: Annotated[str, doc("safetensors or lora.")] = "safetensors"
    base_model: Annotated[str, doc("Name of the model it was trained from.")] = ""
    metrics: Annotated[dict[str, float], doc("The step's main figures.")] = {}
    created_at_us: Annotated[int, doc("When it was announced, epoch µs.")] = 0
