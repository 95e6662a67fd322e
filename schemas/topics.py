"""The topics: the single source of their names, records, keys and clean-up. Brokers, docs and tests derive from it."""

from dataclasses import dataclass
from typing import Literal

from schemas.completions import Completion
from schemas.errors import SchemaError
from schemas.learning import Policy, Step
from schemas.platform import Blob, Telemetry
from schemas.record import Record
from schemas.rollouts import RolloutEvent
from schemas.tasks import Task
from schemas.trajectories import AssemblerProgress, Trajectory

DEAD_LETTER_SUFFIX = ".dlq"


@dataclass(frozen=True)
class Topic:
    """One topic. `number` is part of every schema id on the wire and never changes."""

    name: str
    number: int
    record: type[Record]
    key: str
    """The record's field that is the key; keys are UTF-8 strings."""
    written_by: str
    partitions: int
    cleanup: Literal["delete", "compact"] = "delete"
    major: int = 1

    @property
    def base_name(self) -> str:
        """Name without a prefix, for example `tasks.v1`."""
        return f"{self.name}.v{self.major}"

    def full_name(self, prefix: str = "") -> str:
        """Name on a broker, for example `experiment1.tasks.v1`."""
        return f"{prefix}{self.base_name}"

    def dead_letters(self, prefix: str = "") -> str:
        """Name of the topic that takes this topic's unreadable records."""
        return self.full_name(prefix) + DEAD_LETTER_SUFFIX

    def key_of(self, record: Record) -> str:
        """The record's key.

        Raises:
            SchemaError: the record is not of this topic.
        """
        if type(record) is not self.record:
            raise SchemaError(f"{self.base_name} carries {self.record.__name__}, not {type(record).__name__}")
        return str(getattr(record, self.key))


# rollouts and completions share key and partition count: one assembler sees all of a rollout.
ROLLOUT_PARTITIONS = 4

TASKS = Topic("tasks", 1, Task, "task_id", "forgestream tasks produce", partitions=4)
ROLLOUTS = Topic("rollouts", 2, RolloutEvent, "rollout_id", "launcher", partitions=ROLLOUT_PARTITIONS)
COMPLETIONS = Topic("completions", 3, Completion, "rollout_id", "proxy", partitions=ROLLOUT_PARTITIONS)
BLOBS = Topic("blobs", 4, Blob, "sha256", "proxy, launcher", partitions=4, cleanup="compact")
TRAJECTORIES = Topic("trajectories", 5, Trajectory, "group_id", "assembler", partitions=4)
STEPS = Topic("steps", 6, Step, "run_id", "learner", partitions=1)
ASSEMBLER = Topic("assembler", 7, AssemblerProgress, "partition", "assembler", partitions=1, cleanup="compact")
POLICIES = Topic("policies", 8, Policy, "policy_id", "learner", partitions=1, cleanup="compact")
TELEMETRY = Topic("telemetry", 9, Telemetry, "source", "every service", partitions=1)

ALL_TOPICS: tuple[Topic, ...] = (
    TASKS, ROLLOUTS, COMPLETIONS, BLOBS, TRAJECTORIES, STEPS, ASSEMBLER, POLICIES, TELEMETRY,
)  # fmt: skip
