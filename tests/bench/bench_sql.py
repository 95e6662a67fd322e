"""How long SQL over an archive takes: `python tests/bench/bench_sql.py`.

An archive like the demo's: rollouts over six minutes, flushed every two seconds. The peer is plain DuckDB over the same
files with the same question, without views, types for what is missing, or protection.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).parents[2]))  # before the package `tests` that a dependency installs

from ingest.analytics import NAMED_QUERIES, open_archive
from ingest.archive.columns import to_table
from ingest.archive.files import append, partition_folder
from ingest.archive.settings import ArchiverSettings
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
    Topic,
    Trajectory,
)
from schemas.arrays import pack_floats, pack_ids, pack_mask
from schemas.topics import COMPLETIONS, ROLLOUT_PARTITIONS, ROLLOUTS, STEPS, TRAJECTORIES
from tests.bench.figures import machine, show

ROOT = Path(__file__).parents[2]
GOAL_MS = 100.0
REPEATS = 15
ROLLOUTS_PER_VERSION, TURNS, PROMPT_TOKENS, SAMPLED_TOKENS = 40, 2, 200, 40
BARE = """
SELECT policy_version_min, evaluation, count(*), avg(reward) FROM {trajectories} GROUP BY ALL ORDER BY ALL
"""
AD_HOC = {
    "tokens": "SELECT policy_version_max, sum(completion_tokens), avg(mean_logprob) FROM completions GROUP BY ALL",
    "lists": "SELECT branch, sum(list_sum(rollout_logprobs)), sum(trained_tokens) FROM samples GROUP BY ALL",
    "lookup": "SELECT * FROM rollouts WHERE rollout_id = 'r77'",
}


def records(number: int) -> Iterator[tuple[Topic, Record]]:
    """Everything that the log says of one rollout."""
    name, at, version = f"r{number}", number * 600_000, number // ROLLOUTS_PER_VERSION
    timings = RolloutTimings(
        queued_at_us=at, started_at_us=at + 1_000, exited_at_us=at + 900_000, verified_at_us=at + 901_000
    )
    common = {"rollout_id": name, "harness": "react", "taskset": "needle", "reward": float(number % 3 == 0)}
    for kind in list(RolloutEventKind)[1:]:
        yield ROLLOUTS, RolloutEvent(**common, kind=kind, end_reason=EndReason.COMPLETED, timings=timings)
    for turn in range(TURNS):
        yield (
            COMPLETIONS,
            Completion(
                completion_id=f"{name}-{turn}",
                rollout_id=name,
                status=CompletionStatus.DELIVERED,
                policy_version_max=version,
                request_delta="q" * 800,
                response="a" * 200,
                prompt_token_ids=pack_ids(range(PROMPT_TOKENS)),
                completion_token_ids=pack_ids(range(SAMPLED_TOKENS)),
                rollout_logprobs=pack_floats([-1.0] * SAMPLED_TOKENS),
                timings=CompletionTimings(
                    received_at_us=at, dispatched_at_us=at, first_token_at_us=at, last_token_at_us=at + 9
                ),
            ),
        )
    tokens = TURNS * (PROMPT_TOKENS + SAMPLED_TOKENS)
    sample = Sample(
        token_ids=pack_ids(range(tokens)),
        loss_mask=pack_mask([1] * tokens),
        rollout_logprobs=pack_floats([-1.0] * tokens),
    )
    versions = {"policy_version_min": version, "policy_version_max": version}
    yield TRAJECTORIES, Trajectory(**common, **versions, evaluation=number % 4 == 0, samples=[sample], trainable=True)


def lay_out(root: Path, rollouts: int, roll_bytes: int) -> tuple[int, int]:
    """Write the archive as flushes of two seconds, at `rollouts` in six minutes; files and bytes."""
    flushes, offsets = 180, {}
    for flush in range(flushes):
        waiting: dict[tuple[Topic, int], list[Received]] = {}
        for number in range(flush * rollouts // flushes, (flush + 1) * rollouts // flushes):
            for topic, record in records(number):
                place = (topic, number % ROLLOUT_PARTITIONS)
                offsets[place] = offsets.get(place, -1) + 1
                row = Received(topic, place[1], offsets[place], topic.key_of(record), record, {}, flush * 2_000_000)
                waiting.setdefault(place, []).append(row)
        for (topic, partition), rows in waiting.items():
            folder = partition_folder(root, topic.base_name, partition)
            append(folder, to_table(topic.record, rows), rows[-1].offset + 1, roll_bytes)
    steps = [Received(STEPS, 0, n, "run", Step(step=n, metrics={"loss": 0.1}), {}, n) for n in range(16)]
    append(partition_folder(root, STEPS.base_name, 0), to_table(Step, steps), 16, roll_bytes)
    files = list(root.rglob("*.parquet"))
    return len(files), sum(path.stat().st_size for path in files)


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Median."""
    took = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1e3)
    return statistics.median(took)


def plain(root: Path) -> float:
    """Milliseconds of the peer."""
    connection = duckdb.connect()
    sql = BARE.format(trajectories=f"'{root}/trajectories.v1/*/*.parquet'")
    return milliseconds(lambda: connection.execute(sql).fetchall())


def measure(root: Path, rollouts: int) -> None:
    """An archive as the archiver lays it out."""
    count, size = lay_out(root, rollouts, ArchiverSettings().roll_bytes)
    where = f"{rollouts} rollouts in {count} files, {size / 1e6:.1f} MB; median of {REPEATS}; {machine()}"
    began = time.perf_counter()
    with open_archive(root) as archive:
        show("sql_open", (time.perf_counter() - began) * 1e3, "ms", where)
        began = time.perf_counter()
        archive.named("reward_by_version")
        show("sql_first_query", (time.perf_counter() - began) * 1e3, "ms", where, goal=GOAL_MS)
        took = milliseconds(lambda: archive.query(BARE.format(trajectories="trajectories")))
        show("sql_beside_plain_duckdb", took, "ms", where, peer=plain(root), goal=GOAL_MS)
        for name, sql in ({query.name: query.sql for query in NAMED_QUERIES} | AD_HOC).items():
            took = milliseconds(lambda sql=sql: archive.query(sql))
            show(f"sql_{name}", took, "ms", where, goal=GOAL_MS)
    command = [sys.executable, "-m", "deploy.cli", "sql", "--query", "reward_by_version", "--json"]
    command += ["--set", f"archiver.root={root}"]
    took = milliseconds(lambda: subprocess.run(command, cwd=ROOT, capture_output=True, check=True), 5)
    show("sql_command", took, "ms", f"forgestream sql, start of the process included; {where}")


def contrast(root: Path, rollouts: int) -> None:
    """The same in as many files as there were flushes: why the archiver lets small files grow."""
    count, size = lay_out(root, rollouts, 1)
    where = f"{rollouts} rollouts in {count} files, {size / 1e6:.1f} MB; median of {REPEATS}; {machine()}"
    with open_archive(root) as archive:
        took = milliseconds(lambda: archive.query(BARE.format(trajectories="trajectories")))
        show("sql_without_growing_files", took, "ms", where, peer=plain(root))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=600)
    options, _ = parser.parse_known_args()
    for work in (measure, contrast):
        with tempfile.TemporaryDirectory() as folder:
            work(Path(folder), options.rollouts)


if __name__ == "__main__":
    main()
