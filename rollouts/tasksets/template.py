"""What all tasks of a set have in common, where a task does not say otherwise."""

import msgspec

from schemas import Harness, Limits, Sampling


class TaskTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults of a task set."""

    taskset: str = ""
    """Name of the set; empty: after its source."""
    harness: Harness = Harness(name="react")
    group_size: int = 8
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    epoch: int = 0
    evaluation: bool = False
    policy_id: str = "policy"
    labels: dict[str, str] = {}
