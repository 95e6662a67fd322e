"""The order in which a step becomes durable, and what happens when the log does not answer."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry

from ingest.errors import Fenced, TransactionFailed, TransactionStalled
from ingest.service.context import ServiceContext
from learner import controller as module
from learner.checkpoints import Checkpoints, LearnerState
from learner.controller import Controller, Stores
from learner.groups import CollectorState
from learner.policies import PolicyFolders
from learner.rows import Batch
from learner.settings import LearnerSettings
from schemas import Policy, Step
from tests.unit.learner.stories import collect, trajectory

TWO_GROUPS = [(0, 2 * g + i, trajectory(f"g{g}", i, float(i))) for g in range(2) for i in range(2)]


def is_durable(policy: Policy) -> bool:
    return Path(policy.weights_uri.removeprefix("file://")).is_dir()


class World:
    """A controller whose trainer and announcer write down what they are asked."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.done: list[str] = []
        self.told: list[tuple[Policy, Step | None]] = []
        self.failures: list[Exception] = []
        self.folder = folder
        model = folder / "base"
        model.mkdir()
        (model / "model.safetensors").write_bytes(b"base")
        log = structlog.get_logger()
        self.ctx = ServiceContext("learner", log, CollectorRegistry(), asyncio.Event())
        stores = Stores(Checkpoints(folder / "c", 2), PolicyFolders(folder / "p", 2), self)  # type: ignore[arg-type]
        state = LearnerState(
            run_id="r", policy_id="policy", base_model="base", lora_rank=0, first_version=0, step=0,
            collector=CollectorState(),
        )  # fmt: skip
        self.controller = Controller(
            self.ctx,
            LearnerSettings(run_id="r", model=model, groups_per_step=1, **settings),
            self,
            lambda groups, step: Batch([row for g in groups for m in g.members for row in m.rows], [0.0] * 2),
            stores,
            state,
            collect(TWO_GROUPS),
            ThreadPoolExecutor(1),
        )

    def update(self, batch: Batch) -> dict[str, float]:
        self.done.append("update")
        return {"loss": 0.5}

    def save(self, folder: Path) -> None:
        self.done.append("save")

    def load(self, folder: Path) -> None: ...

    def export(self, folder: Path) -> None:
        assert (self.folder / "c/step-00000001").is_dir(), "weights before their checkpoint"
        self.done.append("export")
        (folder / "model.safetensors").write_bytes(b"weights")

    async def announce(self, policy: Policy, step: Step | None) -> None:
        assert is_durable(policy), "announced before the weights are durable"
        self.done.append("announce")
        if self.failures:
            raise self.failures.pop(0)
        self.told.append((policy, step))

    async def announce_once(self, policy: Policy, step: Step | None) -> bool:
        self.done.append("ask")
        if self.failures:
            raise self.failures.pop(0)
        self.told.append((policy, step))
        return True

    async def live(self, polls: int = 1) -> None:
        """Run until the consumer was polled so often."""
        left = [polls]

        async def poll() -> list[Any]:
            left[0] -= 1
            if not left[0]:
                self.ctx.stopping.set()
            return []

        consumer: Any = SimpleNamespace(poll=poll, positions=dict)
        await self.controller.run(consumer)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_each_part_of_a_step_follows_the_one_before(world: World) -> None:
    await world.live(polls=2)
    assert world.done == ["update", "save", "export", "announce"] * 2
    assert [(policy.version, step and step.groups) for policy, step in world.told] == [(1, ["g0"]), (2, ["g1"])]
    step = world.told[0][1]
    assert step is not None
    assert step.metrics["loss"] == 0.5
    assert step.metrics["reward_mean"] == 0.5
    assert step.offsets == {"0": 2}
    assert step.timings.keys() == {"wait", "update", "checkpoint", "export"}
    assert world.controller.gauges()["groups_consumed"] == 2


async def test_stop_lets_the_step_end_and_begins_no_other(world: World) -> None:
    await world.live(polls=1)
    assert world.done == []

    update = world.update

    def stopping(batch: Batch) -> dict[str, float]:
        world.ctx.stopping.set()
        return update(batch)

    world.ctx.stopping.clear()
    world.update = stopping  # type: ignore[method-assign]
    await world.live(polls=3)
    assert world.done == ["update", "save", "export", "announce"]


@pytest.mark.parametrize("failure", [TransactionFailed("undone"), TransactionStalled("unknown")])
async def test_unclear_announcement_is_settled_by_asking_the_log(
    world: World, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    world.failures = [failure, TransactionStalled("still away")]
    await world.live(polls=2)
    assert world.done[:6] == ["update", "save", "export", "announce", "ask", "ask"]
    assert [policy.version for policy, _ in world.told] == [1, 2]


async def test_fenced_learner_stops(world: World) -> None:
    world.failures = [Fenced("a newer learner")]
    with pytest.raises(Fenced):
        await world.live(polls=2)
    assert world.told == []


async def test_consumed_groups_count_only_when_their_step_is_durable(world: World) -> None:
    seen: list[float] = []
    update, save = world.update, world.save

    def looking(batch: Batch) -> dict[str, float]:
        seen.append(world.controller.gauges()["groups_consumed"])
        return update(batch)

    def looking_again(folder: Path) -> None:
        seen.append(world.controller.gauges()["groups_consumed"])
        save(folder)

    world.update, world.save = looking, looking_again  # type: ignore[method-assign]
    await world.live(polls=2)
    assert seen == [0, 0, 1, 1]


async def test_control_experiment_is_marked_in_every_step(tmp_path: Path) -> None:
    world = World(tmp_path, shuffle_rewards=True)
    await world.live(polls=2)
    assert [step and step.metrics["rewards_shuffled"] for _, step in world.told] == [1.0, 1.0]


async def test_base_model_is_announced_from_its_own_folder(world: World) -> None:
    await world.controller.publish()
    ((policy, step),) = world.told
    assert (policy.version, policy.step, step) == (0, 0, None)
    assert policy.weights_uri == (world.folder / "base").as_uri()
    assert world.done == ["ask"]
