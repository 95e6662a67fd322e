"""The life of a rollout as its launcher tells it: rollouts.v1."""

from typing import Annotated

from schemas.record import Record, WireEnum, doc


class RolloutEventKind(WireEnum):
    """A step in a rollout's life. `finished` is the last one, and there is exactly one of it a rollout."""

    UNKNOWN = "UNKNOWN"
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    STARTED = "started"
    HARNESS_EXITED = "harness_exited"
    VERIFIED = "verified"
    FINISHED = "finished"


class EndReason(WireEnum):
    """Why a rollout ended. Only `completed` is trained."""

    UNKNOWN = "UNKNOWN"
    COMPLETED = "completed"
    """The harness ended by itself with status 0 and the verifier gave a reward."""
    HARNESS_ERROR = "harness_error"
    """The harness ended by itself with a status other than 0."""
    NO_CALLS = "no_calls"
    """The harness ended without one model call."""
    WALL_LIMIT = "wall_limit"
    """It ran longer than `limits.wall_s`."""
    STARTUP_LIMIT = "startup_limit"
    """No model call within `limits.startup_s`."""
    CALL_LIMIT = "call_limit"
    """It asked for more than `limits.calls` completions."""
    TOKEN_LIMIT = "token_limit"
    """It used more than `limits.tokens`."""
    OUTPUT_LIMIT = "output_limit"
    """It flooded its output or its workspace."""
    CONTEXT_LENGTH = "context_length"
    """A request did not fit the model's context."""
    VERIFIER_ERROR = "verifier_error"
    """The verifier failed: no reward."""
    VERIFIER_TIMEOUT = "verifier_timeout"
    """The verifier did not end in time: no reward."""
    INFRASTRUCTURE = "infrastructure"
    """The platform failed, not the agent; retried, and never a reward of zero."""
    CANCELLED = "cancelled"
    """A user stopped it."""


class RolloutTimings(Record, frozen=True, kw_only=True):
    """When each phase was reached, epoch µs; null: not reached, or not known."""

    queued_at_us: Annotated[int | None, doc("The launcher took it on.")] = None
    scheduled_at_us: Annotated[int | None, doc("It got a place to run.")] = None
    image_pulled_at_us: Annotated[int | None, doc("Its image was there.")] = None
    started_at_us: Annotated[int | None, doc("The harness process started.")] = None
    first_call_at_us: Annotated[int | None, doc("Its first model call was received.")] = None
    exited_at_us: Annotated[int | None, doc("The harness process ended.")] = None
    verified_at_us: Annotated[int | None, doc("The verifier ended.")] = None


class RolloutEvent(Record, frozen=True, kw_only=True):
    """One step in the life of one rollout attempt."""

    rollout_id: Annotated[str, doc("The rollout; the key of the record.")] = ""
    attempt: Annotated[int, doc("Counts launches of this rollout from 1; infrastructure failures are retried.")] = 1
    kind: Annotated[RolloutEventKind, doc("What happened.")] = RolloutEventKind.UNKNOWN
    at_us: Annotated[int, doc("When it happened, epoch µs.")] = 0
    group_id: Annotated[str, doc("Rollouts compared with each other share it.")] = ""
    group_size: Annotated[int, doc("Rollouts in the group.")] = 1
    group_index: Annotated[int, doc("Place in the group, from 0.")] = 0
    task_id: Annotated[str, doc("The task attempted.")] = ""
    taskset: Annotated[str, doc("The task's set.")] = ""
    epoch: Annotated[int, doc("The task's epoch.")] = 0
    evaluation: Annotated[bool, doc("True: measured only, never trained.")] = False
    policy_id: Annotated[str, doc("The policy that answered.")] = ""
    harness: Annotated[str, doc("Name of the harness.")] = ""
    harness_version: Annotated[str, doc("Version that really ran.")] = ""
    end_reason: Annotated[EndReason | None, doc("Why it ended; set from harness_exited on.")] = None
    exit_code: Annotated[int | None, doc("The harness's exit status; negative: killed by that signal.")] = None
    reward: Annotated[float | None, doc("The verifier's verdict; null when there is none.")] = None
    rewards: Annotated[dict[str, float], doc("Named components of the reward.")] = {}
    completions_end_offset: Annotated[
        int | None,
        doc(
            "On finished: end offset of this key's partition of completions.v1 after the harness had ended. "
            "Every completion that the harness was given lies below it."
        ),
    ] = None
    completion_count: Annotated[int | None, doc("Completions recorded for the attempt, where counted.")] = None
    timings: Annotated[RolloutTimings, doc("When each phase was reached.")] = RolloutTimings()
    node: Annotated[str, doc("Machine it ran on.")] = ""
    image_digest: Annotated[str, doc("Digest of the container image.")] = ""
    verifier_digest: Annotated[str, doc("sha256 of the verifier's definition.")] = ""
    cpu_s: Annotated[float | None, doc("CPU seconds of the harness and its children.")] = None
    memory_peak_bytes: Annotated[int | None, doc("Peak resident memory of its largest process.")] = None
    message: Annotated[str, doc("One line for people: what happened.")] = ""
    labels: Annotated[dict[str, str], doc("The task's labels.")] = {}
