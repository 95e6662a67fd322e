"""The follower beside either engine, on the real broker; and the health routes that supervisors ask."""

import asyncio
from pathlib import Path

import structlog

from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from learner.serving.client import EngineClient
from learner.serving.follower import Follower
from learner.weights import weights_digest
from schemas import Policy
from schemas.topics import POLICIES
from tests.contract.learner.serving.engines import Api, greedy

GIVEN = [11, 47, 85, 300, 7]


async def test_an_announced_version_is_served(
    api: Api, client: EngineClient, kafka: KafkaSettings, tiny_folder: Path, second_folder: Path
) -> None:
    follower = Follower(client, "policy", structlog.get_logger())
    following = asyncio.create_task(follower.follow(kafka))
    try:
        async with asyncio.timeout(20):
            await follower.ready.wait()
        assert follower.version == 0
        long = asyncio.create_task(api.generate(GIVEN, max_tokens=1000))
        await api.until("vllm:num_requests_running", lambda value: value == 1)
        digest = weights_digest(second_folder)
        announced = Policy(policy_id="policy", version=3, weights_uri=second_folder.as_uri(), weights_digest=digest)
        async with RecordProducer(kafka, "test") as producer:
            await producer.send(POLICIES, announced)
        assert [version for version, _, _ in (await long).versions] == ["policy@0", "policy@3"]
        assert follower.version == 3
        reply = await api.generate(GIVEN, max_tokens=5, temperature=0)
        assert (reply.token_ids, reply.versions) == (greedy(second_folder, GIVEN, 5), [("policy@3", 0, 5)])
    finally:
        following.cancel()
        await asyncio.wait([following])


async def test_an_engine_says_whether_it_is_ready(api: Api) -> None:
    for path, status in (("/health", 200), ("/livez", 200)):
        async with api.session.get(api.url + path) as response:
            assert response.status == status
    async with api.session.get(api.url + "/readyz") as response:
        body = await response.json()
    assert body["service"] == "engine"
    assert body["ready"] == (response.status == 200)
