"""Each contract test runs against the embedded engine, and against vLLM (one server a session, about a minute)."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from learner.models import tiny
from learner.models.folder import make_once
from learner.serving.client import EngineClient
from learner.serving.settings import EmbeddedSettings, EngineSettings
from tests.contract.learner.serving.engines import Api, other_weights, running_engine


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_once(folder, tiny.make)
    return folder


@pytest.fixture(scope="session")
def second_folder(tiny_folder: Path) -> Path:
    return other_weights(tiny_folder, tiny_folder.parent / "second", seed=1)


@pytest.fixture(scope="session")
def embedded_url(tiny_folder: Path) -> Iterator[str]:
    options = EmbeddedSettings(device="cpu", step_tokens=64)  # small pieces, so that prompts really are cut
    with running_engine(EngineSettings(model=tiny_folder, port=0, embedded=options, context_tokens=1024)) as url:
        yield url


@pytest.fixture(scope="session")
def vllm_url(tiny_folder: Path) -> Iterator[str]:
    with running_engine(EngineSettings(kind="vllm", model=tiny_folder, port=0, context_tokens=1024)) as url:
        yield url


@pytest.fixture(params=["embedded", pytest.param("vllm", marks=pytest.mark.vllm)])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield session


@pytest.fixture
async def client(session: aiohttp.ClientSession, url: str, tiny_folder: Path) -> EngineClient:
    """What the follower uses; the engine serves the base model as policy@0 again."""
    client = EngineClient(session, url)
    await client.load(tiny_folder, "policy@0")
    return client


@pytest.fixture
async def api(session: aiohttp.ClientSession, url: str, client: EngineClient) -> Api:
    return Api(session, url)
