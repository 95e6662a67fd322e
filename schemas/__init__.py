"""The contract between the parts: records, topics, codec, ids. Imports nothing else of the project."""

from schemas.codec import decode, encode
from schemas.completions import (
    CallKind,
    Completion,
    CompletionStatus,
    CompletionTimings,
    FinishReason,
    Usage,
    VersionRun,
)
from schemas.errors import ForgestreamError, SchemaError
from schemas.learning import Policy, Step
from schemas.platform import Blob, Telemetry
from schemas.record import Record
from schemas.rollouts import EndReason, RolloutEvent, RolloutEventKind, RolloutTimings
from schemas.tasks import Harness, Limits, Sampling, Task, TaskFile, Verifier
from schemas.topics import ALL_TOPICS, Topic
from schemas.trajectories import AssemblerProgress, Sample, Trajectory

__all__ = [
    "ALL_TOPICS",
    "AssemblerProgress",
    "Blob",
    "CallKind",
    "Completion",
    "CompletionStatus",
    "CompletionTimings",
    "EndReason",
    "FinishReason",
    "ForgestreamError",
    "Harness",
    "Limits",
    "Policy",
    "Record",
    "RolloutEvent",
    "RolloutEventKind",
    "RolloutTimings",
    "Sample",
    "Sampling",
    "SchemaError",
    "Step",
    "Task",
    "TaskFile",
    "Telemetry",
    "Topic",
    "Trajectory",
    "Usage",
    "Verifier",
    "VersionRun",
    "decode",
    "encode",
]
