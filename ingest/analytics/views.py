"""The views: what each one shows, column by column, and the SQL that makes it.

A view over a topic has all fields of its record, with the record's own docs, then what is derived from them. Times
are kept as written (`…_at_us`, epoch µs) and shown as timestamps too (`…_at`, or `happened_at` for `at_us`; UTC).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from schemas import Record, Sample, Topic
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


def fields(record: type[Record], prefix: str = "", only: Collection[str] = ()) -> list[Column]:
    """A column a field of the record, with its doc, and a timestamp a field that is a time."""
    hints = get_type_hints(record, include_extras=True)
    names = [field.name for field in msgspec.structs.fields(record) if not only or field.name in only]
    columns = [Column(name, f"{prefix}{name}", _doc(hints[name])) for name in names]
    times = [
        Column(_time_name(c.name), f"make_timestamp({c.sql})", c.doc.replace("epoch µs", "UTC"))
        for c in columns
        if c.name.endswith("at_us")
    ]
    return [*columns, *times]


def _time_name(name: str) -> str:
    return "happened_at" if name == "at_us" else name.removesuffix("_us")  # `at` alone is a keyword of DuckDB


def _doc(hint: Any) -> str:
    return next(m.description or "" for m in hint.__metadata__ if isinstance(m, msgspec.Meta))


def _over(topic: Topic, doc: str, derived: Sequence[Column] = (), name: str = "") -> View:
    return View(name or topic.name, doc, (*fields(topic.record), *derived, *_ORIGIN), base(topic))


def _between(first: str, last: str) -> str:
    return f"(timings.{last} - timings.{first}) / 1e6"


def _timing(name: str, doc: str) -> Column:
    return Column(name, f"make_timestamp(timings.{name}_us)", f"{doc}, UTC.")


_TRAJECTORY_OF_SAMPLE = (
    "trajectory_id", "rollout_id", "group_id", "task_id", "taskset", "epoch", "harness", "policy_id", "evaluation",
    "reward", "trainable",
)  # fmt: skip

VIEWS: tuple[View, ...] = (
    _over(TASKS, "What was asked for: one row a task, each time that it was produced."),
    View(
        "rollouts",
        "One row a rollout: its last event, and how long its phases took.",
        (
            Column("state", "kind", "Its last event: queued, scheduled, started, harness_exited, verified, finished."),
            *(c for c in fields(ROLLOUTS.record) if c.name not in ("kind", "at_us", "happened_at")),
            Column("last_event_at", "make_timestamp(at_us)", "When its last event happened, UTC."),
            _timing("queued_at", "When the launcher took it on"),
            _timing("started_at", "When the harness started"),
            _timing("exited_at", "When the harness ended"),
            _timing("verified_at", "When the verifier ended"),
            Column("queue_s", _between("queued_at_us", "started_at_us"), "Seconds from queued to started."),
            Column("first_call_s", _between("started_at_us", "first_call_at_us"), "Seconds from start to first call."),
            Column("run_s", _between("started_at_us", "exited_at_us"), "Seconds that the harness ran."),
            Column("verify_s", _between("exited_at_us", "verified_at_us"), "Seconds that the verdict took."),
            Column("total_s", _between("queued_at_us", "verified_at_us"), "Seconds from queued to the verdict."),
            *_ORIGIN,
        ),
        f"(FROM {base(ROLLOUTS)} QUALIFY row_number() OVER "
        "(PARTITION BY rollout_id ORDER BY kind = 'finished' DESC, attempt DESC, _offset DESC) = 1)",
    ),
    _over(ROLLOUTS, "The life of rollouts as it was told: one row an event.", name="rollout_events"),
    _over(
        COMPLETIONS,
        "One row a model exchange: what was new in the request, and what was sampled.",
        (
            Column("new_prompt_tokens", "len(prompt_token_ids)", "Prompt tokens that are new since the parent."),
            Column("completion_tokens", "len(completion_token_ids)", "Tokens sampled."),
            Column("mean_logprob", "list_avg(rollout_logprobs)", "Mean log-probability of the sampled tokens."),
            _timing("received_at", "When the request was read"),
            Column("latency_s", _between("received_at_us", "last_token_at_us"), "Seconds from request to last token."),
            Column("first_token_s", _between("received_at_us", "first_token_at_us"), "Seconds to the first token."),
            Column("engine_s", _between("dispatched_at_us", "last_token_at_us"), "Seconds that the engine took."),
        ),
    ),
    _over(
        TRAJECTORIES,
        "One row a finished rollout, assembled for training. `samples` has its sequences row by row.",
        (Column("sample_count", "len(samples)", "Training sequences, one a branch."),),
    ),
    View(
        "samples",
        "One row a training sequence: tokens, mask and log-probabilities of a branch of a trajectory.",
        (
            *fields(TRAJECTORIES.record, "t.", _TRAJECTORY_OF_SAMPLE),
            *fields(Sample, "s.sample."),
            Column("tokens", "len(s.sample.token_ids)", "Length of the sequence."),
            Column("trained_tokens", "list_sum(s.sample.loss_mask)::BIGINT", "Tokens with a loss mask of 1."),
        ),
        f"{base(TRAJECTORIES)} AS t, unnest(t.samples) AS s(sample)",
    ),
    _over(STEPS, "One row an optimizer step. `metrics['…']` and `timings['…']` give single figures."),
    _over(POLICIES, "One row an announced version of the weights."),
    _over(TELEMETRY, "What services say about themselves, one row a report. `gauges['…']` gives a single figure."),
    View(
        "costs",
        "One row a finished rollout: what it used.",
        (
            *fields(
                TRAJECTORIES.record,
                "t.",
                (
                    "rollout_id",
                    "attempt",
                    "task_id",
                    "taskset",
                    "harness",
                    "policy_id",
                    "evaluation",
                    "end_reason",
                    "completion_count",
                    "prompt_tokens",
                    "completion_tokens",
                    "trained_tokens",
                    "engine_s",
                    "cpu_s",
                    "wall_s",
                ),
            ),
            Column("memory_peak_bytes", "r.memory_peak_bytes", "Peak resident memory of its largest process."),
        ),
        f"{base(TRAJECTORIES)} AS t LEFT JOIN (SELECT rollout_id, max(memory_peak_bytes) AS memory_peak_bytes "
        f"FROM {base(ROLLOUTS)} GROUP BY rollout_id) AS r USING (rollout_id)",
    ),
    View(
        "dead_letters",
        "One row a record that could not be read, with the reason and where it lies in the log.",
        (
            Column("topic", "origin_topic", "Topic of the record."),
            Column("partition", "origin_partition", "Its partition; null when somebody else wrote the dead letter."),
            Column("offset", "origin_offset", "Its offset."),
            Column("reason", "any_value(reason)", "Why it could not be read."),
            Column("key", "any_value(_key)", "Key of the record."),
            Column("value", "any_value(value)", "The record's bytes."),
            Column("headers", "any_value(headers)", "Headers of the dead letter."),
            Column("times_met", "count(*)", "How often a consumer met it."),
            Column("first_met_at", "min(_timestamp)", "When it was met first, UTC."),
        ),
        f"{DEAD_LETTERS} GROUP BY origin_topic, origin_partition, origin_offset, "
        "CASE WHEN origin_offset IS NULL THEN _offset END",
    ),
    _over(BLOBS, "System prompts, tool lists and other payloads, by the sha256 of their bytes."),
    _over(ASSEMBLER, "How far the assembler was on each input partition, one row a commit.", name="assembler_progress"),
)
"""All views, in the order in which a reader meets them."""
