"""Engines under test, clients of their API, other weights, and an independent forward pass."""

import asyncio
import json
import queue
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import structlog
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GenerationConfig

from ingest.service.context import ServiceContext
from learner.serving.service import engine_maker
from learner.serving.settings import EngineSettings


@contextmanager
def running_engine(settings: EngineSettings) -> Iterator[str]:
    """The engine of these settings on a thread and event loop of its own; yields its URL."""
    started: queue.Queue[str | BaseException] = queue.Queue()
    stop = threading.Event()

    async def serve() -> None:
        ctx = ServiceContext("engine", structlog.get_logger(), CollectorRegistry(), asyncio.Event())
        async with engine_maker(settings)(ctx, settings) as engine:
            started.put(engine.url)
            await asyncio.to_thread(stop.wait)

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            started.put(error)

    thread = threading.Thread(target=main, name="engine under test")
    thread.start()
    try:
        outcome = started.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
    finally:
        stop.set()
        thread.join()


@dataclass(frozen=True)
class Reply:
    """A finished completion."""

    request_id: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    stop_reason: int | None
    versions: list[tuple[str, int, int]]
    usage: dict[str, Any]


class Api:
    """The token API of one engine."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body) as response:
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def refused(self, token_ids: list[int], *, model: str = "policy", **sampling: Any) -> tuple[int, str]:
        """Status and message of a request that must fail."""
        status, body = await self.post("/inference/v1/generate", _body(token_ids, sampling, model=model))
        return status, body["error"]["message"]

    async def generate(self, token_ids: list[int], *, request_id: str | None = None, **sampling: Any) -> Reply:
        status, body = await self.post("/inference/v1/generate", _body(token_ids, sampling, request_id=request_id))
        assert status == 200, body
        return _reply(body["request_id"], body["choices"], body["usage"])

    async def chunks(
        self, token_ids: list[int], *, request_id: str | None = None, **sampling: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """The events of a stream, `[DONE]` checked and left out."""
        body = _body(token_ids, sampling, request_id=request_id, stream=True, stream_options={"include_usage": True})
        done = False
        async with self.session.post(self.url + "/inference/v1/generate", json=body) as response:
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/event-stream")
            async for line in response.content:
                if line == b"data: [DONE]\n":
                    done = True
                elif line.strip():
                    assert line.startswith(b"data: "), line
                    assert not done
                    yield json.loads(line[6:])
        assert done

    async def stream(self, token_ids: list[int], **sampling: Any) -> Reply:
        """A streamed completion, put together."""
        chunks = [chunk async for chunk in self.chunks(token_ids, **sampling)]
        *bearing, usage = chunks
        assert usage["choices"] == []
        return _reply(bearing[0]["request_id"], [chunk["choices"][0] for chunk in bearing], usage["usage"])

    async def metric(self, name: str) -> float:
        async with self.session.get(self.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))

    async def until(self, name: str, fits: Callable[[float], bool], timeout_s: float = 20.0) -> None:
        """Waits until the value of a metric fits."""
        for _ in range(int(timeout_s / 0.02)):
            if fits(value := await self.metric(name)):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{name} is still {value}")


def _body(token_ids: list[int], sampling: dict[str, Any], model: str = "policy", **more: Any) -> dict[str, Any]:
    params = {"temperature": 1.0, "logprobs": 0, "ignore_eos": True, **sampling}
    given = {name: value for name, value in more.items() if value is not None}
    return {"model": model, "token_ids": token_ids, "sampling_params": params, **given}


def _reply(request_id: str, choices: list[dict[str, Any]], usage: dict[str, Any]) -> Reply:
    entries = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    ids = [token for choice in choices for token in choice["token_ids"]]
    assert [entry["token_id"] for entry in entries] == ids
    assert [choice["weight_versions"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
    assert usage["completion_tokens"] == len(ids)
    assert usage["total_tokens"] == usage["prompt_tokens"] + len(ids)
    last = choices[-1]
    return Reply(
        request_id=request_id,
        token_ids=ids,
        logprobs=[entry["logprob"] for entry in entries],
        finish_reason=last["finish_reason"],
        stop_reason=last["stop_reason"],
        versions=[(run["version"], run["start"], run["end"]) for run in last["weight_versions"] or []],
        usage=usage,
    )


def other_weights(base: Path, folder: Path, seed: int, scale: float = 0.05) -> Path:
    """A copy of a model folder whose weights are visibly other ones."""
    shutil.copytree(base, folder)
    generator = torch.Generator().manual_seed(seed)
    weights = {
        name: (value.float() + scale * torch.randn(value.shape, generator=generator)).to(value.dtype)
        for name, value in load_file(base / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@cache
def reference(folder: Path) -> Any:
    """The model by transformers alone, in float32."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def forward_logprobs(folder: Path, prompt: list[int], completion: list[int], temperature: float = 1.0) -> list[float]:
    """log π of each completion token, from one plain forward pass over the whole sequence."""
    logits = reference(folder)(torch.tensor([prompt + completion])).logits[0] / temperature
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
    return logprobs.gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


@torch.inference_mode()
def next_logprobs(folder: Path, prompt: list[int]) -> list[float]:
    """log π of every token after the prompt."""
    return torch.log_softmax(reference(folder)(torch.tensor([prompt])).logits[0, -1], -1).tolist()


@torch.inference_mode()
def greedy(folder: Path, prompt: list[int], count: int) -> list[int]:
    """What transformers' own generate says, end tokens or not."""
    ids = torch.tensor([prompt])
    config = GenerationConfig(max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0)
    out = reference(folder).generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return out[0, len(prompt) :].tolist()
