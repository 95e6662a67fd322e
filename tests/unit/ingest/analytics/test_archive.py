"""SQL over an archive: every view, what it shows, and what is refused."""

import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.analytics import Archive, QueryError, open_archive
from ingest.analytics.errors import NoArchive, NotReadOnly, UnknownQuery
from ingest.archive import files, letters
from ingest.archive.columns import record_schema, to_table
from ingest.kafka.consumer import Received
from schemas import (
    Completion,
    CompletionStatus,
    CompletionTimings,
    EndReason,
    Record,
    RolloutEvent,
    RolloutEventKind,
    RolloutTimings,
    Sample,
    Step,
    Task,
    Topic,
    Trajectory,
    VersionRun,
)
from schemas.arrays import pack_floats, pack_ids, pack_mask
from schemas.topics import COMPLETIONS, ROLLOUTS, STEPS, TASKS, TRAJECTORIES

VIEWS = {
    *("tasks", "rollouts", "completions", "trajectories", "samples", "steps", "policies", "telemetry", "costs"),
    *("dead_letters", "rollout_events", "blobs", "assembler_progress"),
}
NEVER_ROLL = 1


def write(
    root: Path, topic: Topic, *records: Record, first: int = 0, partition: int = 0, roll: int = NEVER_ROLL
) -> Path:
    """One flush of the archiver."""
    rows = [
        Received(topic, partition, first + n, topic.key_of(record), record, {}, 1_700_000_000_000_000)
        for n, record in enumerate(records)
    ]
    folder = files.partition_folder(root, topic.base_name, partition)
    return files.append(folder, to_table(topic.record, rows), first + len(rows), roll)


def one(archive: Archive, sql: str) -> Any:
    ((value,),) = archive.query(sql).rows
    return value


def test_every_view_is_there_before_anything_was_archived(tmp_path: Path) -> None:
    with open_archive(tmp_path) as archive:
        views = archive.views()
        assert {view.name for view in views} == VIEWS
        for view in views:
            columns, rows = archive.query(f"SELECT * FROM {view.name}")
            assert columns == [column.name for column in view.columns]
            assert rows == []
        for query in archive.queries():
            columns, rows = archive.named(query.name)
            assert columns
            assert rows == [] or query.name == "integrity"


def test_every_view_and_column_says_what_it_is(tmp_path: Path) -> None:
    with open_archive(tmp_path) as archive:
        undocumented = [
            f"{view.name}.{column.name}"
            for view in archive.views()
            for column in view.columns
            if not (view.doc.endswith(".") and column.doc.endswith((".", "…")) and column.type)
        ]
    assert undocumented == []


def test_types_are_those_of_the_records(tmp_path: Path) -> None:
    with open_archive(tmp_path) as archive:
        types = {f"{v.name}.{c.name}": c.type for v in archive.views() for c in v.columns}
    assert types["completions.completion_token_ids"] == "INTEGER[]"
    assert types["completions.rollout_logprobs"] == "FLOAT[]"
    assert types["samples.loss_mask"] == "UTINYINT[]"
    assert types["completions.timings"].startswith("STRUCT(received_at_us BIGINT")
    assert types["trajectories.rewards"] == "MAP(VARCHAR, DOUBLE)"
    assert types["tasks.created_at"] == "TIMESTAMP"
    assert types["steps.happened_at"] == "TIMESTAMP"


def test_rollouts_are_their_last_event(tmp_path: Path) -> None:
    timings = RolloutTimings(
        queued_at_us=1_000_000,
        started_at_us=3_000_000,
        first_call_at_us=3_500_000,
        exited_at_us=10_000_000,
        verified_at_us=10_250_000,
    )
    write(
        tmp_path,
        ROLLOUTS,
        RolloutEvent(rollout_id="a", kind=RolloutEventKind.QUEUED),
        RolloutEvent(rollout_id="a", kind=RolloutEventKind.STARTED, attempt=2),
        RolloutEvent(rollout_id="b", kind=RolloutEventKind.STARTED),
        RolloutEvent(
            rollout_id="a",
            kind=RolloutEventKind.FINISHED,
            attempt=2,
            end_reason=EndReason.COMPLETED,
            reward=0.5,
            timings=timings,
            at_us=10_500_000,
        ),
        RolloutEvent(rollout_id="a", kind=RolloutEventKind.VERIFIED, attempt=2),
    )
    with open_archive(tmp_path) as archive:
        columns = "rollout_id, state, attempt, end_reason, reward, queue_s, first_call_s, run_s, verify_s, total_s"
        assert archive.query(f"SELECT {columns} FROM rollouts ORDER BY 1").rows == [
            ("a", "finished", 2, "completed", 0.5, 2.0, 0.5, 7.0, 0.25, 9.25),
            ("b", "started", 1, None, None, None, None, None, None, None),
        ]
        assert one(archive, "SELECT started_at FROM rollouts WHERE rollout_id = 'a'") == datetime(1970, 1, 1, 0, 0, 3)
        assert one(archive, "SELECT count(*) FROM rollout_events") == 5


def test_completions_show_what_was_sampled_and_how_long_it_took(tmp_path: Path) -> None:
    timings = CompletionTimings(
        received_at_us=0, dispatched_at_us=100_000, first_token_at_us=300_000, last_token_at_us=1_100_000
    )
    completion = Completion(
        completion_id="c",
        rollout_id="r",
        prompt_token_ids=pack_ids([1, 2, 3]),
        completion_token_ids=pack_ids([4, 5]),
        rollout_logprobs=pack_floats([-0.5, -1.5]),
        timings=timings,
    )
    write(tmp_path, COMPLETIONS, completion)
    with open_archive(tmp_path) as archive:
        assert archive.query(
            "SELECT completion_token_ids, new_prompt_tokens, completion_tokens, mean_logprob, latency_s, "
            "first_token_s, engine_s, timings.received_at_us, _offset FROM completions"
        ).rows == [([4, 5], 3, 2, -1.0, 1.1, 0.3, 1.0, 0, 0)]


def trajectory(name: str, version: int | None, reward: float | None, **values: Any) -> Trajectory:
    return Trajectory(
        trajectory_id=f"{name}-t",
        rollout_id=name,
        group_id="g",
        policy_id="policy",
        policy_version_min=version,
        policy_version_max=version,
        reward=reward,
        end_reason=EndReason.COMPLETED,
        trainable=True,
        **values,
    )


def test_samples_are_rows(tmp_path: Path) -> None:
    samples = [
        Sample(branch=0, token_ids=pack_ids([1, 2, 3]), loss_mask=pack_mask([0, 1, 1]), completion_ids=["a"]),
        Sample(branch=1, token_ids=pack_ids([1, 9]), policy_version_runs=[VersionRun(version=4, start=1, end=2)]),
    ]
    write(tmp_path, TRAJECTORIES, trajectory("r", 4, 1.0, samples=samples), trajectory("none", None, 0.0))
    with open_archive(tmp_path) as archive:
        assert archive.query(
            "SELECT rollout_id, reward, branch, tokens, trained_tokens, token_ids[-1], policy_version_runs[1].version "
            "FROM samples ORDER BY branch"
        ).rows == [("r", 1.0, 0, 3, 2, 3, None), ("r", 1.0, 1, 2, None, 9, 4)]
        assert archive.query("SELECT rollout_id, sample_count FROM trajectories ORDER BY 1").rows == [
            ("none", 0),
            ("r", 2),
        ]


def test_reward_by_version(tmp_path: Path) -> None:
    mixed = Trajectory(
        trajectory_id="m-t", rollout_id="m", policy_id="policy", policy_version_min=0, policy_version_max=1, reward=1.0
    )
    write(
        tmp_path,
        TRAJECTORIES,
        trajectory("a", 0, 0.0),
        trajectory("b", 0, 0.5, completion_tokens=30),
        mixed,
        trajectory("c", 1, 1.0, evaluation=True),
        trajectory("d", 1, None, evaluation=True),
        trajectory("e", None, 0.0),
    )
    with open_archive(tmp_path) as archive:
        columns, rows = archive.named("reward_by_version")
    told = [dict(zip(columns, row, strict=True)) for row in rows]
    assert [(t["split"], t["policy_version"], t["rollouts"], t["reward_mean"], t["mixed"]) for t in told] == [
        ("evaluation", 1, 2, 1.0, 0),
        ("training", 0, 3, 0.5, 1),
    ]
    assert told[1]["completion_tokens_mean"] == 10
    assert told[1]["completed_share"] == pytest.approx(2 / 3)


def test_integrity_counts_what_is_missing_and_what_is_there_twice(tmp_path: Path) -> None:
    names = ["a", "b", "lost"]
    write(tmp_path, ROLLOUTS, *(RolloutEvent(rollout_id=n, kind=RolloutEventKind.FINISHED) for n in names))
    write(tmp_path, TRAJECTORIES, trajectory("a", 0, 1.0), trajectory("b", 0, 1.0), trajectory("b", 0, 1.0))
    write(tmp_path, COMPLETIONS, *(Completion(completion_id=c, rollout_id="a") for c in ("x", "y", "x")))
    write(tmp_path, STEPS, Step(groups=["g", "h"]), Step(groups=["g"]), Step(groups=["i"]))
    with open_archive(tmp_path) as archive:
        columns, (row,) = archive.named("integrity")
    assert dict(zip(columns, row, strict=True)) == {
        "rollouts_finished": 3,
        "rollouts_assembled": 2,
        "trajectories_lost": 1,
        "trajectories_doubled": 1,
        "completions_doubled": 1,
        "groups_trained_twice": 1,
    }


def test_costs_join_what_a_rollout_used(tmp_path: Path) -> None:
    events = [RolloutEvent(rollout_id="a"), RolloutEvent(rollout_id="a", memory_peak_bytes=7)]
    write(tmp_path, ROLLOUTS, *events)
    write(tmp_path, TRAJECTORIES, trajectory("a", 0, 1.0, cpu_s=2.5, completion_tokens=9))
    with open_archive(tmp_path) as archive:
        assert archive.query("SELECT rollout_id, cpu_s, completion_tokens, memory_peak_bytes FROM costs").rows == [
            ("a", 2.5, 9, 7)
        ]


def test_maps_give_single_figures(tmp_path: Path) -> None:
    write(tmp_path, STEPS, Step(run_id="run", step=1, metrics={"loss": 0.25}))
    with open_archive(tmp_path) as archive:
        assert one(archive, "SELECT metrics['loss'] FROM steps") == 0.25
        assert one(archive, "SELECT metrics FROM steps") == {"loss": 0.25}


def test_a_dead_letter_counts_once_however_many_consumers_met_it(tmp_path: Path) -> None:
    def letter(offset: int, origin: int | None) -> letters.Letter:
        return letters.Letter(
            COMPLETIONS, 0, offset, "k", 1_000_000, None if origin is None else 2, origin, "cut", b"x", {}
        )

    for name, rows in {
        "completions.v1.dlq": [letter(0, 40), letter(1, 41), letter(2, 40), letter(3, None), letter(4, None)],
    }.items():
        folder = files.partition_folder(tmp_path, name, 0)
        files.append(folder, letters.to_table(rows), 5, NEVER_ROLL)
    with open_archive(tmp_path) as archive:
        assert archive.query(
            'SELECT topic, "partition", "offset", reason, times_met FROM dead_letters ORDER BY "offset" NULLS LAST'
        ).rows == [
            ("completions.v1", 2, 40, "cut", 2),
            ("completions.v1", 2, 41, "cut", 1),
            ("completions.v1", None, None, "cut", 1),
            ("completions.v1", None, None, "cut", 1),
        ]


def test_an_open_archive_sees_new_files(tmp_path: Path) -> None:
    with open_archive(tmp_path) as archive:
        assert one(archive, "SELECT count(*) FROM tasks") == 0
        write(tmp_path, TASKS, Task(task_id="a"))
        assert one(archive, "SELECT count(*) FROM tasks") == 1
        write(tmp_path, TASKS, Task(task_id="b"), first=1)
        write(tmp_path, TASKS, Task(task_id="c"), partition=3)
        assert one(archive, "SELECT count(*) FROM tasks") == 3
        write(tmp_path, TASKS, Task(task_id="d"), first=1, partition=3, roll=1 << 20)
        assert one(archive, "SELECT string_agg(task_id, '' ORDER BY task_id) FROM tasks") == "abcd"


def test_files_of_another_release_are_read_too(tmp_path: Path) -> None:
    path = write(tmp_path, TASKS, Task(task_id="now", instruction="do"))
    table = pq.ParquetFile(path).read()
    older = table.drop_columns(["instruction"])
    newer = table.append_column("added_later", pa.array(["x"]))
    for offset, other in ((1, older), (2, newer)):
        pq.write_table(other, path.with_name(f"{offset:020d}.parquet"))
    with open_archive(tmp_path) as archive:
        assert archive.query("SELECT instruction, count(*) FROM tasks GROUP BY ALL ORDER BY ALL").rows == [
            ("do", 2),
            (None, 1),
        ]


def test_a_folder_with_quotes_in_its_name(tmp_path: Path) -> None:
    root = tmp_path / 'it\'s "here"'
    root.mkdir()
    write(root, TASKS, Task(task_id="a"))
    with open_archive(root) as archive:
        assert one(archive, "SELECT task_id FROM tasks") == "a"


def test_no_folder_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(NoArchive, match="run `forgestream up`"):
        open_archive(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{root}/x.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{root}/x.csv'",
        "explain/**/analyze COPY (SELECT 1) TO '{root}/x.csv'",
        "ATTACH '{root}/x.db'",
        "EXPORT DATABASE '{root}/x'",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW tasks",
        "INSERT INTO raw.tasks_newest FROM tasks",
        "SET threads = 1",
        "INSTALL httpfs",
        "CALL pragma_version()",
        "PREPARE x AS SELECT 1",
        "SELECT 1; SELECT 2",
        "",
        "-- nothing",
    ],
)
def test_whatever_is_not_one_select_is_refused(tmp_path: Path, sql: str) -> None:
    with open_archive(tmp_path) as archive, pytest.raises(NotReadOnly):
        archive.query(sql.format(root=tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql", ["FROM read_text('/etc/hostname')", "FROM glob('/etc/*')", "FROM read_csv('{root}/../*')"]
)
def test_nothing_outside_of_the_archive_is_read(tmp_path: Path, sql: str) -> None:
    root = tmp_path / "archive"
    root.mkdir()
    (tmp_path / "secret").write_text("x")
    with open_archive(root) as archive, pytest.raises(QueryError, match=r"reads the archive .* and nothing else"):
        archive.query(sql.format(root=root))


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM rollout", r"^no view is named rollout: there are tasks, rollouts, rollout_events, "),
        ("SELECT nope FROM tasks", r'^Binder Error: Referenced column "nope" not found .*Candidate bindings: [^\n]*$'),
        ("SELEC 1", r'^Parser Error: syntax error at or near "SELEC"$'),
        ("SELECT 'x'::INT", r"^Conversion Error: Could not convert string 'x' to INT32$"),
    ],
)
def test_an_error_is_one_line_that_says_what_there_is(tmp_path: Path, sql: str, message: str) -> None:
    with open_archive(tmp_path) as archive, pytest.raises(QueryError, match=message):
        archive.query(sql)


def test_an_unknown_named_query_is_told_the_known_ones(tmp_path: Path) -> None:
    with open_archive(tmp_path) as archive, pytest.raises(UnknownQuery, match="there are reward_by_version, "):
        archive.named("nope")


def test_explain_and_parameters_are_answered(tmp_path: Path) -> None:
    write(tmp_path, TASKS, Task(task_id="a"), Task(task_id="b"))
    with open_archive(tmp_path) as archive:
        assert archive.query("SELECT task_id FROM tasks WHERE task_id = ?", ["b"]).rows == [("b",)]
        assert archive.query("EXPLAIN SELECT * FROM tasks").rows
        assert archive.query("EXPLAIN ANALYZE SELECT * FROM tasks").rows
        assert archive.query("FROM tasks;").rows


def test_readers_see_whole_files_while_the_archiver_replaces_them(tmp_path: Path) -> None:
    stop = threading.Event()
    written = [0]

    def archive_on() -> None:
        while not stop.is_set():
            records = [
                Completion(completion_id=str(written[0] + n), status=CompletionStatus.DELIVERED) for n in range(20)
            ]
            write(tmp_path, COMPLETIONS, *records, first=written[0], roll=20_000)
            written[0] += 20

    writer = threading.Thread(target=archive_on)
    writer.start()
    try:
        with open_archive(tmp_path) as archive:
            seen, deadline = 0, time.monotonic() + 3
            while time.monotonic() < deadline:
                count, last = archive.query("SELECT count(DISTINCT completion_id), max(_offset) FROM completions").rows[
                    0
                ]
                assert count == (last or -1) + 1
                assert count >= seen
                seen = count
    finally:
        stop.set()
        writer.join()
    assert seen > 100


def test_no_topic_is_without_columns_of_its_own() -> None:
    for topic in (TASKS, ROLLOUTS, COMPLETIONS, TRAJECTORIES, STEPS):
        assert len(record_schema(topic.record)) > 8
