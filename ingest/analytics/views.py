"""The views: what each one shows, column by column, and the SQL that makes it.

A view over a topic has all fields of its record, with the record's own docs, then what is derived from them. Times
are kept as written (`…_at_us`, epoch µs) and shown as timestamps too (`…_at`, UTC).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args, get_origin, get_type_hints

import msgspec

from schemas import Record, Topic
from schemas.topics import (
    ASSEMBLER,
    BLOBS,
    COMPLETIONS,
    POLICIES,
    ROLLOUTS,
    STEPS,
    TASKS,
    TELEMETRY,
    TRAJECTORIES,
)


@dataclass(frozen=True)
class Column:
    """One column of a view."""

    name: str
    sql: str
    doc: str


@dataclass(frozen=True)
class View:
    """One view."""

    name: str
    doc: str
    columns: tuple[Column, ...]
    source: str
    """What stands after FROM."""

    @property
    def sql(self) -> str:
        """The SELECT that makes it."""
        columns = ", ".join(f'{column.sql} AS "{column.name}"' for column in self.columns)
        return f"SELECT {columns} FROM {self.source}"


def base(topic: Topic) -> str:
    """The relation that holds a topic's records as they are."""
    return f"raw.{topic.name}"


DEAD_LETTERS = "raw.dead_letters"
"""The relation that holds all dead letters."""

_ORIGIN = (
    Column("_key", "_key", "Key of the record."),
    Column("_partition", "_partition", "Partition of the log that holds it."),
    Column("_offset", "_offset", "Its offset there."),
    Column("_timestamp", "_timestamp", "The log's time stamp, UTC."),
)


def _fields(record: type[Record], prefix: str = "") -> list[Column]:
    """A column a field of the record, with its doc; and a timestamp a field that is one."""
    hints = get_type_hints(record, include_extras=True)
    columns = [
        Column(field.name, f"{prefix}{field.name}", _doc(hints[field.name])) for field in msgspec.structs.fields(record)
    ]
    times = [
        Column(c.name.removesuffix("_us"), f"make_timestamp({c.sql})", f"{c.doc.split(',')[0].rstrip('.')}, UTC.")
        for c in columns
        if c.name.endswith("_at_us")
    ]
    return [*columns, *times]


def _doc(hint: object) -> str:
    if get_origin(hint) is Annotated:
        return next((m.description or "" for m in get_args(hint)[1:] if isinstance(m, msgspec.Meta)), "")
    return ""


def _over(name: str, topic: Topic, doc: str, derived: Sequence[Column] = ()) -> View:
    return View(name, doc, (*_fields(topic.record), *derived, *_ORIGIN), base(topic))


def _between(first: str, last: str) -> str:
    return f"(timings.{last} - timings.{first}) / 1e6"


def _timing(name: str, doc: str) -> Column:
    return Column(name, f"make_timestamp(timings.{name}_us)", f"{doc} UTC.")


_TASKS = _over("tasks", TASKS, "What was asked for, one row a task as it was produced.")

_ROLLOUT_EVENTS = _over(
    "rollout_events", ROLLOUTS, "The life of rollouts as it was told, one row an event. `rollouts` is the short form."
)

_ROLLOUT_FIELDS = [c for c in _fields(ROLLOUTS.record) if c.name not in ("kind", "at_us", "at")]

_ROLLOUTS = View(
    "rollouts",
    "One row a rollout: its last event, and how long its phases took.",
    (
        Column("rollout_id", "rollout_id", "The rollout."),
        Column("state", "kind", "Its last event: queued, scheduled, started, harness_exited, verified or finished."),
        *_ROLLOUT_FIELDS[1:],
        Column("last_event_at", "make_timestamp(at_us)", "When its last event happened, UTC."),
        _timing("queued_at", "When the launcher took it on,"),
        _timing("started_at", "When the harness started,"),
        _timing("exited_at", "When the harness ended,"),
        _timing("verified_at", "When the verifier ended,"),
        Column("queue_s", _between("queued_at_us", "started_at_us"), "Seconds from queued to started."),
        Column("first_call_s", _between("started_at_us", "first_call_at_us"), "Seconds from start to first model call."),
        Column("run_s", _between("started_at_us", "exited_at_us"), "Seconds that the harness ran."),
        Column("verify_s", _between("exited_at_us", "verified_at_us"), "Seconds from the harness's end to the verdict."),
        Column("total_s", _between("queued_at_us", "verified_at_us"), "Seconds from queued to the verdict."),
        *_ORIGIN[1:3],
    ),
    f"(FROM {base(ROLLOUTS)} QUALIFY row_number() OVER "
    "(PARTITION BY rollout_id ORDER BY kind = 'finished' DESC, attempt DESC, _offset DESC) = 1)",
)

_COMPLETIONS = _over(
    "completions",
    COMPLETIONS,
    "One row a model exchange: what was new in the request, and what was sampled.",
    (
        Column("new_prompt_tokens", "len(prompt_token_ids)", "Prompt tokens that are new since the parent."),
        Column("completion_tokens", "len(completion_token_ids)", "Tokens sampled."),
        Column("mean_logprob", "list_avg(rollout_logprobs)", "Mean log-probability of the sampled tokens."),
        _timing("received_at", "When the request was read,"),
        Column("latency_s", _between("received_at_us", "last_token_at_us"), "Seconds from request to last token."),
        Column("first_token_s", _between("received_at_us", "first_token_at_us"), "Seconds from request to first token."),
        Column("engine_s", _between("dispatched_at_us", "last_token_at_us"), "Seconds that the engine took."),
    ),
)

_TRAJECTORIES = _over(
    "trajectories",
    TRAJECTORIES,
    "One row a finished rollout, assembled for training; `samples` has its sequences row by row.",
    (Column("sample_count", "len(samples)", "Samples, one a branch."),),
)

_SAMPLES = View(
    "samples",
    "One row a training sequence: a branch of a trajectory, with tokens, mask and log-probabilities.",
    (
        *(Column(c.name, f"t.{c.sql}", c.doc) for c in _fields(TRAJECTORIES.record) if c.name in {
            "trajectory_id", "rollout_id", "group_id", "task_id", "taskset", "epoch", "harness", "policy_id",
            "evaluation", "reward", "trainable", "reason",
        }),
        *(c for c in _fields(TRAJECTORIES.record.__annotations__ and __import__("schemas").Sample, "s.sample.")),
        Column("tokens", "len(s.sample.token_ids)", "Length of the sequence."),
        Column("trained_tokens", "list_sum(s.sample.loss_mask)::BIGINT", "Tokens with a loss mask of 1."),
    ),
    f"{base(TRAJECTORIES)} t, unnest(t.samples) AS s(sample)",
)
