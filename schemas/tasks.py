"""What a user asks for: tasks.v1."""

from typing import Annotated

from schemas.record import Record, doc


class TaskFile(Record, frozen=True, kw_only=True):
    """A file that stands in the workspace before the harness starts."""

    path: Annotated[str, doc("Path inside the workspace, relative, with forward slashes.")] = ""
    content: Annotated[bytes | None, doc("The file's bytes, when they are small enough to travel inline.")] = None
    blob: Annotated[str | None, doc("sha256 of the content on blobs.v1, when it travels apart.")] = None
    executable: Annotated[bool, doc("Whether the file is made executable.")] = False


class Harness(Record, frozen=True, kw_only=True):
    """The agent program that attempts the task."""

    name: Annotated[str, doc("Name of the harness pack: react, pi, …")] = ""
    version: Annotated[str, doc("Wanted version; empty means the pack's pinned one.")] = ""
    options: Annotated[str, doc("JSON object: options of the pack.")] = "{}"


class Verifier(Record, frozen=True, kw_only=True):
    """How a finished rollout becomes a reward."""

    kind: Annotated[str, doc("exact, command or reasoning_gym.")] = ""
    options: Annotated[str, doc("JSON object: what the kind needs, for example the expected answer.")] = "{}"


class Sampling(Record, frozen=True, kw_only=True):
    """How tokens are drawn. In training the proxy applies this, whatever the harness asked for."""

    temperature: Annotated[float, doc("Softmax temperature; 0 is greedy.")] = 1.0
    top_p: Annotated[float, doc("Nucleus mass; 1 is off, which training needs.")] = 1.0
    top_k: Annotated[int, doc("Candidates kept; -1 is off, which training needs.")] = -1
    max_tokens: Annotated[int, doc("Most tokens of one completion; 0 leaves it to the harness.")] = 0
    seed: Annotated[int | None, doc("Seed of the first completion, when a rollout must repeat.")] = None


class Limits(Record, frozen=True, kw_only=True):
    """What one rollout may use. Reaching a limit ends it cleanly with an end reason of its own; 0 is no limit."""

    wall_s: Annotated[float, doc("Seconds from the harness's start to its end.")] = 600.0
    startup_s: Annotated[float, doc("Seconds from launch to the first model call.")] = 120.0
    calls: Annotated[int, doc("Model calls.")] = 0
    tokens: Annotated[int, doc("Prompt and completion tokens together.")] = 0


class Task(Record, frozen=True, kw_only=True):
    """One task: `group_size` rollouts of it are compared with each other."""

    task_id: Annotated[str, doc("Unique within a task set and epoch.")] = ""
    taskset: Annotated[str, doc("The set that the task belongs to.")] = ""
    instruction: Annotated[str, doc("What the harness is told, word for word.")] = ""
    files: Annotated[list[TaskFile], doc("The workspace at the start.")] = []
    image: Annotated[str, doc("Container image of the rollout; unused by local processes.")] = ""
    harness: Annotated[Harness, doc("Which agent program attempts it.")] = Harness()
    verifier: Annotated[Verifier, doc("How it is judged.")] = Verifier()
    group_size: Annotated[int, doc("Rollouts of this task that form one group.")] = 1
    sampling: Annotated[Sampling, doc("How the policy's tokens are drawn.")] = Sampling()
    limits: Annotated[Limits, doc("What one rollout may use.")] = Limits()
    epoch: Annotated[int, doc("Counts how often the task was produced.")] = 0
    evaluation: Annotated[bool, doc("True: measured only, never trained.")] = False
    policy_id: Annotated[str, doc("The policy that answers the harness.")] = "policy"
    labels: Annotated[dict[str, str], doc("Free key-value pairs for queries.")] = {}
    created_at_us: Annotated[int, doc("When it was produced, epoch µs.")] = 0
