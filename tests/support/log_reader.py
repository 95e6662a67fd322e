"""Reads a whole log and says what is wrong with it, sharing no code with what wrote it.

Bytes come from confluent-kafka, records from fastavro and the schema files as released, arrays from `array`. Each check
returns lines that say what is wrong; an empty list means that the log keeps the platform's promise.
"""

import array
import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

HISTORY = Path(__file__).parents[2] / "schemas" / "history"
TOPICS = ["tasks", "rollouts", "completions", "trajectories", "steps", "policies"]


@dataclass
class Row:
    """One record with its place in the log."""

    partition: int
    offset: int
    key: str
    value: dict[str, Any]


@dataclass
class Log:
    """Every record of the topics that matter, in offset order within a partition."""

    rows: dict[str, list[Row]] = field(default_factory=dict)

    def values(self, topic: str) -> list[dict[str, Any]]:
        return [row.value for row in self.rows[topic]]

    def finished(self) -> dict[str, dict[str, Any]]:
        return {v["rollout_id"]: v for v in self.values("rollouts") if v["kind"] == "finished"}


def read_log(bootstrap: str, prefix: str = "") -> Log:
    """All that is committed now."""
    return Log({name: list(_read(bootstrap, name, f"{prefix}{name}.v1")) for name in TOPICS})


def _read(bootstrap: str, name: str, topic: str) -> Any:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "log-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
    open_partitions = set(partitions)
    while open_partitions:
        message = consumer.poll(10.0)
        if message is None:
            raise KafkaException(f"{topic}: the broker stopped answering")
        if message.error():
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
            open_partitions.discard(message.partition())
            continue
        yield Row(message.partition(), message.offset(), message.key().decode(), _decode(name, message.value()))
    consumer.close()


def _decode(name: str, data: bytes) -> dict[str, Any]:
    assert data[0] == 0
    schema = json.loads((HISTORY / f"{name}.v1" / f"v{data[4]}.avsc").read_text())
    return fastavro.schemaless_reader(BytesIO(data[5:]), fastavro.parse_schema(schema), None)  # type: ignore[return-value]


def ints(data: bytes) -> list[int]:
    return array.array("i", data).tolist()


def floats(data: bytes) -> list[float]:
    return array.array("f", data).tolist()


# --- the checks -----------------------------------------------------------------------------------------------------


def faults(log: Log) -> list[str]:
    """Everything that is wrong."""
    return [
        *completion_faults(log),
        *chain_faults(log),
        *rollout_faults(log),
        *sample_faults(log),
        *training_faults(log),
        *policy_faults(log),
    ]


def completion_faults(log: Log) -> list[str]:
    """Every completion once; ids, logprobs and version runs aligned."""
    found = [f"completion {i} is there {n} times" for i, n in _repeated(log, "completions", "completion_id")]
    for row in log.rows["completions"]:
        c = row.value
        if row.key != c["rollout_id"]:
            found.append(f"completion {c['completion_id']} has the key {row.key}")
        if c["status"] != "delivered":
            continue
        ids, logprobs = ints(c["completion_token_ids"]), floats(c["rollout_logprobs"])
        if not ids or len(ids) != len(logprobs):
            found.append(f"completion {c['completion_id']}: {len(ids)} ids, {len(logprobs)} logprobs")
        if any(value > 0 for value in logprobs):
            found.append(f"completion {c['completion_id']}: a logprob above 0")
        covered = [i for run in c["policy_version_runs"] for i in range(run["start"], run["end"])]
        if covered != list(range(len(ids))):
            found.append(f"completion {c['completion_id']}: version runs do not cover its tokens")
        if c["usage"]["prompt_tokens"] != c["prompt_token_count"] or c["usage"]["completion_tokens"] != len(ids):
            found.append(f"completion {c['completion_id']}: usage is not what was sampled")
    return found


def full_prompts(log: Log) -> dict[str, list[int]]:
    """The whole prompt of each completion, put together from the deltas along its parents."""
    by_id = {c["completion_id"]: c for c in log.values("completions")}
    prompts: dict[str, list[int]] = {}

    def prompt(name: str) -> list[int]:
        if name not in prompts:
            c = by_id[name]
            before = []
            if c["parent_id"] is not None:
                parent = by_id[c["parent_id"]]
                before = prompt(c["parent_id"]) + ints(parent["completion_token_ids"])
            prompts[name] = before + ints(c["prompt_token_ids"])
        return prompts[name]

    for name in by_id:
        prompt(name)
    return prompts


def chain_faults(log: Log) -> list[str]:
    """The prompt of a later turn begins with the prompt and completion of its parent, to the token."""
    prompts, found = full_prompts(log), []
    for c in log.values("completions"):
        if len(prompts[c["completion_id"]]) != c["prompt_token_count"]:
            found.append(
                f"completion {c['completion_id']}: chain has {len(prompts[c['completion_id']])} prompt tokens, "
                f"the engine was given {c['prompt_token_count']}"
            )
    return found


def rollout_faults(log: Log) -> list[str]:
    """Each rollout of each task finished exactly once and became exactly one trajectory."""
    finished = Counter(v["rollout_id"] for v in log.values("rollouts") if v["kind"] == "finished")
    queued = {v["rollout_id"] for v in log.values("rollouts")}
    assembled = Counter(t["rollout_id"] for t in log.values("trajectories"))
    found = [f"rollout {r} never finished" for r in sorted(queued - finished.keys())]
    found += [f"rollout {r} finished {n} times" for r, n in finished.items() if n > 1]
    found += [f"rollout {r} has {assembled[r]} trajectories" for r in finished if assembled[r] != 1]
    found += [f"trajectory of unfinished rollout {r}" for r in assembled if r not in finished]
    groups: dict[str, set[int]] = defaultdict(set)
    for v in log.finished().values():
        groups[v["group_id"]].add(v["group_index"])
    sizes = {v["group_id"]: v["group_size"] for v in log.finished().values()}
    found += [f"group {g} has members {sorted(groups[g])}" for g in groups if groups[g] != set(range(sizes[g]))]
    if len(groups) != len({(t["taskset"], t["task_id"], t["epoch"]) for t in log.values("tasks")}):
        found.append(f"{len(log.values('tasks'))} tasks, {len(groups)} groups")
    return found


def sample_faults(log: Log) -> list[str]:
    """Trained tokens are exactly the sampled ones of the finished attempt, each once, with their own logprobs."""
    prompts = full_prompts(log)
    by_id = {c["completion_id"]: c for c in log.values("completions")}
    found = []
    for t in log.values("trajectories"):
        trained: Counter[str] = Counter()
        for sample in t["samples"]:
            found += _check_sample(t, sample, by_id, prompts, trained)
        expected = {
            c["completion_id"]
            for c in by_id.values()
            if (c["rollout_id"], c["attempt"]) == (t["rollout_id"], t["attempt"])
            and c["status"] == "delivered"
            and c["call_kind"] in ("agent", "subagent")
        }
        if t["trainable"] and set(trained) != expected:
            found.append(f"trajectory {t['trajectory_id']}: trains {sorted(trained)}, recorded are {sorted(expected)}")
        found += [f"trajectory {t['trajectory_id']}: {c} trained {n} times" for c, n in trained.items() if n > 1]
        if t["trainable"] and (t["evaluation"] or t["reward"] is None or t["end_reason"] != "completed"):
            found.append(f"trajectory {t['trajectory_id']} must not be trainable")
    return found


def _check_sample(
    trajectory: dict[str, Any],
    sample: dict[str, Any],
    by_id: dict[str, dict[str, Any]],
    prompts: dict[str, list[int]],
    trained: Counter[str],
) -> list[str]:
    where = f"trajectory {trajectory['trajectory_id']} branch {sample['branch']}"
    ids, mask, logprobs = ints(sample["token_ids"]), list(sample["loss_mask"]), floats(sample["rollout_logprobs"])
    if not len(ids) == len(mask) == len(logprobs):
        return [f"{where}: {len(ids)} ids, {len(mask)} mask, {len(logprobs)} logprobs"]
    found, explained = [], [0] * len(ids)
    for name in sample["completion_ids"]:
        c, start = by_id[name], len(prompts[name])
        sampled = ints(c["completion_token_ids"])
        end = start + len(sampled)
        if ids[:start] != prompts[name] or ids[start:end] != sampled:
            found.append(f"{where}: tokens are not those of completion {name}")
        if any(mask[start:end]):
            trained[name] += 1
            explained[start:end] = [1] * len(sampled)
            if logprobs[start:end] != floats(c["rollout_logprobs"]):
                found.append(f"{where}: logprobs are not those of completion {name}")
    if mask != explained:
        found.append(f"{where}: the loss mask is not exactly on sampled tokens")
    if any(value for value, bit in zip(logprobs, mask, strict=True) if not bit):
        found.append(f"{where}: a logprob where nothing is trained")
    return found


def training_faults(log: Log) -> list[str]:
    """No group trained twice, none of it a held-out one, and nothing trained that was not trainable."""
    found = []
    by_name = {t["trajectory_id"]: t for t in log.values("trajectories")}
    trained = Counter(g for s in log.values("steps") for g in s["groups"])
    found += [f"group {g} trained {n} times" for g, n in trained.items() if n > 1]
    dropped = Counter(g for s in log.values("steps") for g in s["groups_dropped"])
    found += [f"group {g} trained and dropped" for g in trained if g in dropped]
    names = Counter(name for s in log.values("steps") for name in s["trajectory_ids"])
    found += [f"trajectory {name} trained {n} times" for name, n in names.items() if n > 1]
    found += [f"trajectory {name} trained though not trainable" for name in names if not by_name[name]["trainable"]]
    steps = [s["step"] for s in log.values("steps")]
    if steps != list(range(1, len(steps) + 1)):
        found.append(f"steps are {steps}")
    for s in log.values("steps"):
        tokens = sum(sum(x["loss_mask"]) for name in s["trajectory_ids"] for x in by_name[name]["samples"])
        if tokens != s["trained_tokens"]:
            found.append(f"step {s['step']} says {s['trained_tokens']} trained tokens, its trajectories have {tokens}")
    return found


def policy_faults(log: Log) -> list[str]:
    """Versions only grow, by one; no completion carries a version that was not announced before it."""
    versions = [p["version"] for p in log.values("policies")]
    found = [] if versions == list(range(len(versions))) else [f"versions are {versions}"]
    for c in log.values("completions"):
        if c["status"] == "delivered" and not 0 <= c["policy_version_max"] < max(len(versions), 1):
            found.append(f"completion {c['completion_id']} carries version {c['policy_version_max']}")
    return found


def checkpoint_faults(log: Log, state: dict[str, Any]) -> list[str]:
    """The checkpoint is the one of the newest step; all that lies below its offsets was consumed."""
    last, found = log.values("steps")[-1], []
    if state["step"] != last["step"]:
        found.append(f"checkpoint is at step {state['step']}, the log at {last['step']}")
    if state["collector"]["offsets"] != last["offsets"]:
        found.append(f"checkpoint has offsets {state['collector']['offsets']}, its step {last['offsets']}")
    done = {g for s in log.values("steps") for g in [*s["groups"], *s["groups_dropped"]]}
    for row in log.rows["trajectories"]:
        t = row.value
        consumed = row.offset < last["offsets"].get(str(row.partition), 0)
        if consumed and not t["evaluation"] and t["group_id"] not in done:
            found.append(f"group {t['group_id']} lies below the checkpoint's offsets but was never consumed")
    return found


def _repeated(log: Log, topic: str, name: str) -> list[tuple[str, int]]:
    return [(i, n) for i, n in Counter(v[name] for v in log.values(topic)).items() if n > 1]
