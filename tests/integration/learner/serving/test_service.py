"""The engine service on the real broker: it follows policies.v1, and says what is wrong in one line."""

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import structlog
from prometheus_client import CollectorRegistry
from structlog.testing import CapturingLogger

from ingest.kafka.consumer import read_all
from ingest.kafka.producer import RecordProducer
from ingest.kafka.settings import KafkaSettings
from ingest.service.context import ServiceContext
from ingest.service.errors import PortInUse
from learner.serving.errors import ModelRefused, VllmFailed
from learner.serving.service import run
from learner.serving.settings import EngineSettings, VllmSettings
from learner.weights import weights_digest
from schemas import Policy
from schemas.topics import POLICIES, TELEMETRY
from tests.contract.learner.serving.engines import Api, greedy, other_weights

GIVEN = [11, 47, 85, 300, 7]


@dataclass
class Service:
    """A running engine service."""

    api: Api
    ctx: ServiceContext
    log: CapturingLogger
    task: asyncio.Task

    def events(self, event: str) -> list[dict[str, Any]]:
        return [call.kwargs for call in self.log.calls if call.kwargs.get("event") == event]

    async def until(self, event: str, count: int = 1, timeout_s: float = 20.0) -> dict[str, Any]:
        """Waits until the service has logged an event this often; its last fields."""
        for _ in range(int(timeout_s / 0.05)):
            if len(found := self.events(event)) >= count:
                return found[-1]
            assert not self.task.done(), self.task.exception()
            await asyncio.sleep(0.05)
        raise AssertionError(f"no {count} × {event!r} in {[call.kwargs for call in self.log.calls]}")


def context() -> tuple[ServiceContext, CapturingLogger]:
    log = CapturingLogger()
    bound = structlog.wrap_logger(log, processors=[structlog.stdlib.add_log_level])
    return ServiceContext("engine", bound, CollectorRegistry(), asyncio.Event()), log  # pyright: ignore[reportArgumentType]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@asynccontextmanager
async def serving(folder: Path, kafka: KafkaSettings, **more: Any) -> AsyncIterator[Service]:
    ctx, log = context()
    settings = EngineSettings(model=folder, port=free_port(), context_tokens=1024, **more)
    task = asyncio.create_task(run(ctx, settings, kafka))
    async with aiohttp.ClientSession() as session:
        service = Service(Api(session, f"http://127.0.0.1:{settings.port}"), ctx, log, task)
        try:
            await service.until("serving")
            yield service
        finally:
            ctx.stopping.set()
            await asyncio.wait_for(task, 20)


def policy(folder: Path, version: int, **more: Any) -> Policy:
    return Policy(
        policy_id=more.pop("policy_id", "policy"),
        version=version,
        weights_uri=folder.absolute().as_uri(),
        weights_digest=more.pop("weights_digest", None) or weights_digest(folder),
        **more,
    )


@pytest.fixture
async def announce(kafka: KafkaSettings) -> AsyncIterator[Any]:
    async with RecordProducer(kafka, "test") as producer:

        async def send(*policies: Policy) -> None:
            for one in policies:
                await producer.send(POLICIES, one)

        yield send


async def test_versions_are_followed_as_they_come(
    tiny_folder: Path, kafka: KafkaSettings, announce: Any, tmp_path: Path
) -> None:
    first = other_weights(tiny_folder, tmp_path / "first", seed=1)
    second = other_weights(tiny_folder, tmp_path / "second", seed=2)
    async with serving(tiny_folder, kafka) as service:
        await asyncio.sleep(0)
        assert service.ctx.is_ready
        reply = await service.api.generate(GIVEN, max_tokens=6, temperature=0)
        assert (reply.token_ids, reply.versions) == (greedy(tiny_folder, GIVEN, 6), [("policy@0", 0, 6)])
        await announce(policy(first, 1), policy(second, 5, policy_id="another"))
        await service.until("policy version loaded")
        reply = await service.api.generate(GIVEN, max_tokens=6, temperature=0)
        assert (reply.token_ids, reply.versions) == (greedy(first, GIVEN, 6), [("policy@1", 0, 6)])

        long = asyncio.create_task(service.api.generate(GIVEN, max_tokens=1000))
        await service.api.until("vllm:num_requests_running", lambda value: value == 1)
        await announce(policy(second, 2))
        reply = await long
        assert [version for version, _, _ in reply.versions] == ["policy@1", "policy@2"]
        assert len(reply.token_ids) == 1000
        await announce(policy(first, 1))  # an older one changes nothing
        await asyncio.sleep(0.5)
        reply = await service.api.generate(GIVEN, max_tokens=6, temperature=0)
        assert (reply.token_ids, reply.versions) == (greedy(second, GIVEN, 6), [("policy@2", 0, 6)])
        assert [event["version"] for event in service.events("policy version loaded")] == [1, 2]


async def test_bad_versions_are_skipped_and_the_next_one_loads(
    tiny_folder: Path, kafka: KafkaSettings, announce: Any, tmp_path: Path
) -> None:
    good = other_weights(tiny_folder, tmp_path / "good", seed=1)
    changed = other_weights(tiny_folder, tmp_path / "changed", seed=2)
    foreign = tmp_path / "foreign"
    shutil.copytree(tiny_folder, foreign)
    (foreign / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")  # whole, and empty
    announced = [
        policy(changed, 1, weights_digest="0" * 64),
        policy(tmp_path / "absent", 2, weights_digest="0" * 64),
        policy(foreign, 3),
        policy(good, 4, format="lora"),
    ]
    reasons = ["digest", "cannot be read", "tensors missing", "lora"]
    async with serving(tiny_folder, kafka) as service:
        for count, (bad, reason) in enumerate(zip(announced, reasons, strict=True), start=1):
            await announce(bad)
            skipped = await service.until("policy version skipped", count)
            assert skipped["version"] == bad.version
            assert reason in skipped["error"]
            assert "\n" not in skipped["error"]
            reply = await service.api.generate(GIVEN, max_tokens=4, temperature=0)
            assert (reply.token_ids, reply.versions) == (greedy(tiny_folder, GIVEN, 4), [("policy@0", 0, 4)])
        await announce(policy(good, 5))
        await service.until("policy version loaded")
        reply = await service.api.generate(GIVEN, max_tokens=4, temperature=0)
        assert (reply.token_ids, reply.versions) == (greedy(good, GIVEN, 4), [("policy@5", 0, 4)])


async def test_a_restart_begins_with_the_newest_version(
    tiny_folder: Path, kafka: KafkaSettings, announce: Any, tmp_path: Path
) -> None:
    versions = {n: other_weights(tiny_folder, tmp_path / str(n), seed=n) for n in (1, 2, 3)}
    await announce(*(policy(folder, n) for n, folder in versions.items()))
    shutil.rmtree(versions[1])
    async with serving(tiny_folder, kafka) as service:
        reply = await service.api.generate(GIVEN, max_tokens=4, temperature=0)
        assert (reply.token_ids, reply.versions) == (greedy(versions[3], GIVEN, 4), [("policy@3", 0, 4)])
        assert [event["version"] for event in service.events("policy version loaded")] == [3]
        assert service.events("policy version skipped") == []


async def test_telemetry_tells_how_it_does(tiny_folder: Path, kafka: KafkaSettings) -> None:
    async with serving(tiny_folder, kafka) as service:
        await asyncio.gather(*(service.api.generate([5, n], max_tokens=900) for n in range(4)))
        await asyncio.sleep(1.2)
    told = [received.record for received in await read_all(kafka, TELEMETRY)]
    assert {one.source for one in told} == {"engine"}
    assert {one.labels["policy_id"] for one in told} == {"policy"}
    assert all(one.gauges["policy_version"] == 0 for one in told[1:])
    assert max(one.gauges.get("tokens_per_s", 0) for one in told) > 100
    assert 0 < max(one.gauges.get("busy_share", 0) for one in told) <= 1
    assert told[-1].gauges["requests_running"] == 0


async def test_stopping_ends_what_is_under_way(tiny_folder: Path, kafka: KafkaSettings) -> None:
    async with serving(tiny_folder, kafka) as service:
        long = asyncio.create_task(service.api.generate(GIVEN, max_tokens=1000))
        await service.api.until("vllm:num_requests_running", lambda value: value == 1)
        service.ctx.stopping.set()
        assert (await long).finish_reason == "abort"
    with pytest.raises(aiohttp.ClientConnectionError):
        async with aiohttp.ClientSession() as session:
            await session.get(service.api.url + "/health")


async def test_health_routes(tiny_folder: Path, kafka: KafkaSettings) -> None:
    async with serving(tiny_folder, kafka) as service, aiohttp.ClientSession() as session:
        for path in ("/health", "/livez", "/readyz"):
            async with session.get(service.api.url + path) as response:
                assert response.status == 200
        async with session.get(service.api.url + "/readyz") as response:
            assert (await response.json())["pid"] == os.getpid()


async def test_what_keeps_it_from_starting_is_said(tiny_folder: Path, kafka: KafkaSettings, tmp_path: Path) -> None:
    async def start(**more: Any) -> None:
        ctx, _ = context()
        await run(ctx, EngineSettings(**{"model": tiny_folder, "port": 0, **more}), kafka)

    with pytest.raises(ModelRefused, match="is no model folder: `python -m learner"):
        await start(model=tmp_path)
    with pytest.raises(ModelRefused, match="more than the 16384 positions"):
        await start(context_tokens=20_000)
    with pytest.raises(VllmFailed, match="make install-vllm"):
        await start(kind="vllm", vllm=VllmSettings(python=tmp_path / "python"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match="FORGESTREAM_ENGINE__PORT"):
            await start(port=port)
        with pytest.raises(PortInUse, match="FORGESTREAM_ENGINE__PORT"):
            await start(kind="vllm", port=port, vllm=VllmSettings(python=Path("/bin/sh")))


async def test_a_vllm_that_dies_leaves_its_last_words(tiny_folder: Path, kafka: KafkaSettings, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho loading\necho 'no AVX2 here' >&2\nexit 3\n")
    script.chmod(0o755)
    ctx, _ = context()
    settings = EngineSettings(kind="vllm", model=tiny_folder, port=0, vllm=VllmSettings(python=script))
    with pytest.raises(VllmFailed, match=r"status 3; the end of its log: loading \| no AVX2 here"):
        await run(ctx, settings, kafka)


async def test_a_vllm_that_never_answers_is_given_up(tiny_folder: Path, kafka: KafkaSettings, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho $$ > $(dirname $0)/pid\nexec sleep 600\n")
    script.chmod(0o755)
    ctx, _ = context()
    options = VllmSettings(python=script, start_timeout_s=1.0)
    with pytest.raises(VllmFailed, match="does not answer after"):
        await run(ctx, EngineSettings(kind="vllm", model=tiny_folder, port=0, vllm=options), kafka)
    assert not psutil.pid_exists(int(await asyncio.to_thread((tmp_path / "pid").read_text)))


async def test_a_stop_while_vllm_starts_leaves_nothing_behind(
    tiny_folder: Path, kafka: KafkaSettings, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    script.chmod(0o755)
    ctx, log = context()
    settings = EngineSettings(kind="vllm", model=tiny_folder, port=0, vllm=VllmSettings(python=script))
    task = asyncio.create_task(run(ctx, settings, kafka))
    lines: list[str] = []
    async with asyncio.timeout(20):
        while not lines:
            await asyncio.sleep(0.05)
            lines = [call.kwargs["line"] for call in log.calls if call.kwargs.get("event") == "vllm"]
    assert psutil.pid_exists(int(lines[0]))
    ctx.stopping.set()
    await asyncio.wait_for(task, 20)
    assert not psutil.pid_exists(int(lines[0]))
