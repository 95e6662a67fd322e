"""The whole learner against a real broker: what it trains, tells and keeps, also when it is killed."""

import asyncio
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

from ingest.kafka.admin import ensure_topics
from ingest.kafka.consumer import read_all
from ingest.kafka.settings import KafkaSettings
from learner.checkpoints import Checkpoints
from learner.durable import exclusive
from learner.settings import LearnerSettings
from learner.weights import weights_digest
from schemas import Policy, Step, Trajectory
from schemas.topics import TELEMETRY, TRAJECTORIES
from tests.integration.learner.lives import (
    Life,
    Zygote,
    in_one_partition,
    member,
    policies,
    produce,
    steps,
    until,
)
from tests.integration.learner.worlds import make_row, reference


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    one = Zygote()
    yield one
    one.close()


@pytest.fixture
def settings(tmp_path: Path, tiny_folder: Path) -> LearnerSettings:
    return LearnerSettings(
        port=0, runs=tmp_path / "runs", run_id="r", model=tiny_folder, groups_per_step=1, lr=1e-3, max_staleness=1000
    )


def group(model: Any, name: str, *, size: int = 3, version: int = 0, seed: int = 0) -> list[Trajectory]:
    """A usable group; its tokens and rewards are a function of its name and the seed."""
    rng = random.Random(f"{name}/{seed}")
    return [
        member(name, i, float(i % 2), [make_row(model, rng.randrange(10**6))], size=size, version=version)
        for i in range(size)
    ]


def folder_of(policy: Policy) -> Path:
    return Path(urlparse(policy.weights_uri).path)


def log_lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


async def test_groups_become_versions(
    zygote: Zygote, kafka: KafkaSettings, settings: LearnerSettings, tiny_folder: Path, tmp_path: Path
) -> None:
    """Usable groups are trained in log order, others are dropped with their reason; versions appear, whole and
    announced; a group that was sampled from version 1's folder finds the trainer in agreement."""
    model = reference(tiny_folder)
    a, flat, b, lame, e = in_one_partition(5)
    flat_rows = [make_row(model, i) for i in range(2)]
    await produce(
        kafka,
        [
            *group(model, a),
            *(member(flat, i, 1.0, [row], size=2) for i, row in enumerate(flat_rows)),
            member(e, 0, 1.0, [flat_rows[0]], size=2, evaluation=True),
            *group(model, b)[::-1],
            member(lame, 0, 1.0, [flat_rows[0]], size=2, trainable=False, reason="incomplete"),
            member(lame, 1, 0.0, [flat_rows[1]], size=2),
        ],
    )
    life = zygote.start(settings, kafka, tmp_path / "log")

    async def two_steps() -> list[Step] | None:
        told = await steps(kafka)
        return told if len(told) == 2 else None

    told = await until(two_steps, "two steps", life)
    assert [(step.step, step.policy_version, step.groups) for step in told] == [(1, 1, [a]), (2, 2, [b])]
    dropped = told[0].groups_dropped | told[1].groups_dropped
    assert dropped == {flat: "zero_variance", lame: "untrainable"}
    assert told[1].trajectory_ids == [f"{b}-r{i}-t" for i in range(3)]
    assert told[0].trained_tokens == sum(t.samples[0].loss_mask.count(1) for t in group(model, a))
    assert told[1].offsets["0"] >= 9
    assert told[0].metrics["delta_max"] < 1e-5
    assert told[0].metrics["reward_mean"] == pytest.approx(1 / 3)
    assert {"wait", "update", "checkpoint", "export"} <= told[0].timings.keys()

    known = {policy.version: policy for policy in await policies(kafka)}
    assert sorted(known) == [0, 1, 2]
    assert folder_of(known[0]) == tiny_folder
    assert (known[2].run_id, known[2].step, known[2].base_model, known[2].format) == ("r", 2, "tiny", "safetensors")
    for policy in known.values():
        assert policy.weights_digest == weights_digest(folder_of(policy))

    c = in_one_partition(1, "next")[0]
    sampled_from_2 = group(reference(folder_of(known[2])), c, version=2)
    await produce(kafka, sampled_from_2)
    third = await until(lambda: third_step(kafka), "the third step", life)
    assert third.groups == [c]
    assert third.metrics["delta_mean"] < 0.02, "bf16 weights against the trainer's fp32"
    assert third.metrics["staleness_max"] == 0.0
    assert third.groups_dropped == {}

    gauges = await until(lambda: last_gauges(kafka, "step", 3.0), "telemetry", life)
    assert gauges["groups_consumed"] == 5
    assert gauges["groups_dropped"] == 2
    assert gauges["policy_version"] == 3
    assert 0 <= gauges["wait_share"] <= 1
    assert life.stop() == 0
    assert sorted(path.name for path in (settings.run_folder / "policies").iterdir()) == ["1", "2", "3"]


async def third_step(kafka: KafkaSettings) -> Step | None:
    told = await steps(kafka)
    return told[2] if len(told) == 3 else None


async def last_gauges(kafka: KafkaSettings, name: str, value: float) -> dict[str, float] | None:
    found = [one.record.gauges for one in await read_all(kafka, TELEMETRY) if one.key == "learner"]
    return found[-1] if found and found[-1][name] == value else None


async def check_lineage(kafka: KafkaSettings, settings: LearnerSettings, groups: Sequence[str]) -> list[Policy]:
    """Each group trained once, steps and versions without a gap, and the checkpoint in agreement."""
    told, known = await steps(kafka), await policies(kafka)
    assert [step.step for step in told] == list(range(1, len(groups) + 1))
    assert [step.policy_version for step in told] == list(range(1, len(groups) + 1))
    assert sorted(name for step in told for name in step.groups) == sorted(groups)
    assert [policy.version for policy in known] == list(range(len(groups) + 1))
    newest = Checkpoints(settings.run_folder / "checkpoints", 2).newest()
    assert newest is not None
    assert newest[1].step == len(groups)
    assert newest[1].collector.groups_trained == len(groups)
    return known


async def finish(zygote: Zygote, kafka: KafkaSettings, settings: LearnerSettings, count: int, log: Path) -> None:
    life = zygote.start(settings, kafka, log)

    async def done() -> bool:
        return len(await steps(kafka)) >= count

    await until(done, f"{count} steps", life)
    assert life.stop() == 0


async def test_killed_at_every_boundary_it_goes_on_as_if_nothing_had_happened(
    zygote: Zygote,
    broker: KafkaSettings,
    kafka: KafkaSettings,
    settings: LearnerSettings,
    tiny_folder: Path,
    tmp_path: Path,
) -> None:
    """SIGKILL before, within and after each durable step. Then the same log without a kill, in another run: the
    weights of the last version are the same, bit for bit."""
    points = [
        ("checkpoint", 1),
        ("saving", 2),
        ("checkpoint written", 2),
        ("weights", 3),
        ("weights written", 4),
        ("transaction", 5),
        ("announced", 6),
    ]
    names = in_one_partition(7)
    model = reference(tiny_folder)
    await produce(kafka, [one for name in names for one in group(model, name)])
    for point in points:
        life = zygote.start(settings, kafka, tmp_path / "log", crash=point)
        assert life.wait() == -9, f"did not die at {point}"
    await finish(zygote, kafka, settings, 7, tmp_path / "log")
    known = await check_lineage(kafka, settings, names)

    calm = settings.model_copy(update={"run_id": "calm", "policy_id": "policy"})
    await finish(zygote, await fresh_copy(broker, kafka), calm, 7, tmp_path / "calm.log")
    there, here = settings.run_folder / "policies/7", calm.run_folder / "policies/7"
    assert known[-1].weights_digest == weights_digest(there) == weights_digest(here)


async def fresh_copy(broker: KafkaSettings, kafka: KafkaSettings) -> KafkaSettings:
    """The same trajectories on topics of their own."""
    copy = broker.model_copy(update={"topic_prefix": f"copy.{kafka.topic_prefix}"})
    await ensure_topics(copy)
    await produce(copy, [one.record for one in await read_all(kafka, TRAJECTORIES)])
    return copy


@pytest.mark.parametrize("seed", [1, 2])
async def test_killed_at_random_moments_every_group_is_trained_once(
    zygote: Zygote, kafka: KafkaSettings, settings: LearnerSettings, tiny_folder: Path, tmp_path: Path, seed: int
) -> None:
    """Groups on all partitions, while they arrive; LoRA; two groups a step; killed four times after a random while."""
    rng = random.Random(seed)
    settings = settings.model_copy(update={"lora_rank": 4, "groups_per_step": 2})
    names = [f"s{seed}-{number}" for number in range(40)]
    model = reference(tiny_folder)
    records = [one for name in names for one in group(model, name)]
    feeding = asyncio.create_task(feed(kafka, records))
    for _ in range(4):
        life = zygote.start(settings, kafka, tmp_path / "log")
        await asyncio.sleep(rng.uniform(1.0, 5.0))
        life.kill()
        assert life.wait() == -9
    await feeding
    await finish(zygote, kafka, settings, 20, tmp_path / "log")
    told, known = await steps(kafka), await policies(kafka)
    assert [step.step for step in told] == list(range(1, 21))
    assert sorted(name for step in told for name in step.groups) == sorted(names)
    assert [policy.version for policy in known] == list(range(21))
    restarts = [line for line in log_lines(tmp_path / "log") if line["event"] == "loading"]
    assert len(restarts) == 5
    assert len({line["step"] for line in restarts}) > 1, "no life came as far as a step"


async def feed(kafka: KafkaSettings, records: Sequence[Trajectory]) -> None:
    for start in range(0, len(records), 10):
        await produce(kafka, records[start : start + 10])
        await asyncio.sleep(0.5)


async def test_run_ends_at_max_steps_and_still_consumes(
    zygote: Zygote, kafka: KafkaSettings, settings: LearnerSettings, tiny_folder: Path, tmp_path: Path
) -> None:
    model = reference(tiny_folder)
    names = in_one_partition(3)
    await produce(kafka, [one for name in names for one in group(model, name)])
    life = zygote.start(settings.model_copy(update={"max_steps": 1}), kafka, tmp_path / "log")
    gauges = await until(lambda: last_gauges(kafka, "groups_consumed", 3.0), "three groups consumed", life)
    assert (gauges["step"], gauges["groups_dropped"]) == (1, 2)
    assert life.stop() == 0
    assert len(await steps(kafka)) == 1


async def test_second_learner_on_a_run_is_refused(
    zygote: Zygote, kafka: KafkaSettings, settings: LearnerSettings, tmp_path: Path
) -> None:
    with exclusive(settings.run_folder):
        life: Life = zygote.start(settings, kafka, tmp_path / "log")
        assert life.wait() == 1
    line = log_lines(tmp_path / "log")[-1]
    assert line["event"] == "failed"
    assert "another learner works in" in line["error"]


async def test_new_run_of_a_trained_policy_continues_its_versions(
    zygote: Zygote, kafka: KafkaSettings, settings: LearnerSettings, tiny_folder: Path, tmp_path: Path
) -> None:
    """The next run starts from the base model again, as the next version, and leaves the old trajectories alone."""
    model = reference(tiny_folder)
    old, new = in_one_partition(2)
    await produce(kafka, group(model, old))
    await finish(zygote, kafka, settings, 1, tmp_path / "log")
    second = settings.model_copy(update={"run_id": "second"})
    life = zygote.start(second, kafka, tmp_path / "log2")

    async def begun() -> bool:
        return max(policy.version for policy in await policies(kafka)) == 2

    await until(begun, "the second run's base version", life)
    await produce(kafka, group(model, new, version=2))

    async def stepped() -> bool:
        return len(await steps(kafka)) == 2

    await until(stepped, "the second run's step", life)
    assert life.stop() == 0
    known = await policies(kafka)
    assert [(policy.version, policy.run_id) for policy in known] == [(0, "r"), (1, "r"), (2, "second"), (3, "second")]
    assert folder_of(known[2]) == tiny_folder
    assert [step.groups for step in await steps(kafka)] == [[old], [new]]

    life = zygote.start(settings, kafka, tmp_path / "log")
    assert life.wait() == 1, "the first run must not go on"
    assert "is at version 3 of run second" in log_lines(tmp_path / "log")[-1]["error"]
