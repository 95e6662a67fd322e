"""Announcements on a real broker: together, once, and from one learner."""

import pytest

from ingest.errors import Fenced
from ingest.kafka.settings import KafkaSettings
from learner.announcer import Announcer
from schemas import Policy, Step
from tests.integration.learner.lives import policies, steps


def policy(version: int, run_id: str = "r") -> Policy:
    return Policy(policy_id="policy", version=version, run_id=run_id, weights_uri=f"file:///w/{version}")


def step(number: int) -> Step:
    return Step(run_id="r", step=number, policy_version=number, groups=[f"g{number}"])


async def test_version_is_told_once_however_often_it_is_tried(kafka: KafkaSettings) -> None:
    async with Announcer(kafka, "r", "policy") as announcer:
        assert await announcer.newest() is None
        assert await announcer.announce_once(policy(0), None)
        assert not await announcer.announce_once(policy(0), None)
        await announcer.announce(policy(1), step(1))
        assert not await announcer.announce_once(policy(1), step(1))
        assert await announcer.newest() == policy(1)
    assert await policies(kafka) == [policy(0), policy(1)]
    assert await steps(kafka) == [step(1)]


async def test_newer_learner_fences_the_older(kafka: KafkaSettings) -> None:
    async with Announcer(kafka, "r", "policy") as older, Announcer(kafka, "r", "policy") as newer:
        with pytest.raises(Fenced):
            await older.announce(policy(1), step(1))
        await newer.announce(policy(1), step(1))
    assert await policies(kafka) == [policy(1)]
    assert await steps(kafka) == [step(1)]


async def test_other_run_that_took_over_is_noticed(kafka: KafkaSettings) -> None:
    async with Announcer(kafka, "r", "policy") as mine, Announcer(kafka, "s", "policy") as other:
        await mine.announce(policy(1), step(1))
        await other.announce(policy(2, "s"), None)
        with pytest.raises(Fenced, match="trained by run s now"):
            await mine.announce_once(policy(2), step(2))


async def test_other_policies_do_not_matter(kafka: KafkaSettings) -> None:
    async with Announcer(kafka, "r", "policy") as announcer, Announcer(kafka, "o", "other") as other:
        await other.announce(Policy(policy_id="other", version=9, run_id="o"), None)
        assert await announcer.newest() is None
