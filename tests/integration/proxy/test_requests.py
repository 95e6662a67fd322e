"""Who may ask, what is refused and how, and what is a repeat."""

import asyncio
import json
import time

import aiohttp
import openai
import pytest

from ingest.kafka.producer import RecordProducer
from schemas import CompletionStatus, EndReason, Limits, RolloutEvent, RolloutEventKind
from schemas.arrays import unpack_ids
from schemas.topics import ROLLOUTS
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.scripted_engine import ScriptedEngine, texts

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def post(
    proxy: RunningProxy, body: bytes, path: str = "/v1/chat/completions", token: str | None = None, **headers: str
):
    """Status, JSON body and headers of a raw request."""
    sent = {"Authorization": f"Bearer {proxy.token() if token is None else token}"} | headers
    async with aiohttp.ClientSession() as session, session.post(proxy.url + path, data=body, headers=sent) as response:
        return response.status, json.loads(await response.read()), response.headers


async def test_a_token_is_accepted_as_api_key_and_as_path_prefix(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "hello")) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        prefixed = openai.AsyncOpenAI(
            base_url=f"{proxy.url}/r/{proxy.token('r1')}/v1", api_key="sk-anything", max_retries=0
        )
        async with proxy.client("r0") as by_key, prefixed as by_path:
            for client in (by_key, by_path):
                await client.chat.completions.create(**ASK)
                assert [model.id async for model in client.models.list()] == ["policy"]
        body = json.dumps(ASK).encode()
        for name in ("x-api-key", "x-goog-api-key"):
            status, *_ = await post(proxy, body, token="", **{"Authorization": "", name: proxy.token("r2")})
            assert status == 200
        assert {record.rollout_id for record in await proxy.completions(None)} == {"r0", "r1", "r2"}


async def test_strangers_are_turned_away_in_openais_shape(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "hello")) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        expired = proxy.token(exp=int(time.time()) - 1)
        altered = proxy.token()[:-3] + "abc"
        for token in ("sk-wrong", expired, altered):
            async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=token, max_retries=0) as client:
                with pytest.raises(openai.AuthenticationError) as refused:
                    await client.chat.completions.create(**ASK)
                assert refused.value.code == "invalid_api_key"
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{proxy.url}/v1/chat/completions", json=ASK) as nobody,
        ):
            assert nobody.status == 401
        assert engine.requests == []
        assert await proxy.completions(None) == []


async def test_unknown_routes_methods_and_probes(kafka, plain_folder):
    async with running_proxy(kafka, plain_folder, "http://127.0.0.1:9") as proxy, aiohttp.ClientSession() as session:
        for method, path, status in (
            ("POST", "/v1/embeddings", 404),
            ("GET", "/r/token/v2", 404),
            ("GET", "/v1/chat/completions", 405),
            ("HEAD", "/", 200),
            ("HEAD", f"/r/{proxy.token()}", 200),
            ("GET", f"/r/{proxy.token()}/v1", 200),
            ("GET", "/livez", 200),
            ("GET", "/readyz", 200),
        ):
            async with session.request(method, proxy.url + path) as response:
                assert (method, path, response.status) == (method, path, status)
                if status >= 400:
                    assert set((await response.json())["error"]) == {"message", "type", "param", "code"}
        async with session.get(f"{proxy.url}/metrics") as response:
            text = await response.text()
        assert 'forgestream_proxy_requests_total{dialect="openai_chat",outcome="unknown_url"} 2.0' in text


DEEP = b"[" * 600 + b"]" * 600
NESTED = json.dumps(ASK).encode()[:-1] + b', "tools": [{"function": {"name": "f", "x": ' + DEEP + b"}}]}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1]",
        b'{"messages": [{"role": "user"',
        b"null",
        json.dumps(ASK | {"n": 3}).encode(),
        NESTED,
    ],
)
async def test_bad_bodies_are_bad_requests(kafka, hermes_folder, body):
    async with running_proxy(kafka, hermes_folder, "http://127.0.0.1:9", engine_retry_s=0.2) as proxy:
        status, told, _ = await post(proxy, body)
        assert (status, told["error"]["type"]) == (400, "invalid_request_error")


async def test_a_body_that_is_too_large_is_answered(kafka, plain_folder):
    async with running_proxy(kafka, plain_folder, "http://127.0.0.1:9", body_limit_bytes=100_000) as proxy:
        status, told, _ = await post(proxy, b"x" * 300_000)
        assert (status, told["error"]["code"]) == (413, "request_too_large")

        async def endless():
            for _ in range(300):
                yield b"x" * 1000

        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{proxy.url}/r/{proxy.token()}/v1/chat/completions", data=endless()) as response,
        ):  # no content-length
            assert response.status == 413


async def test_a_prompt_that_does_not_fit_is_told_so_that_the_harness_compacts(kafka, plain_folder):
    async with running_proxy(kafka, plain_folder, "http://127.0.0.1:9") as proxy:
        async with proxy.client() as client:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x " * 2000}])
        (record,) = await proxy.completions()
    assert refused.value.code == "context_length_exceeded"
    count = record.prompt_token_count
    assert count == len(unpack_ids(record.prompt_token_ids)) > 2048
    assert f"maximum context length is 2048 tokens. However, your messages resulted in {count} tokens" in str(
        refused.value
    )
    assert (record.status, record.error is not None) == (CompletionStatus.FAILED, True)


async def test_limits_of_a_rollout_end_it_cleanly(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "hello", "hello " * 40)) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        async with proxy.client("calls", limits=Limits(calls=1)) as client:
            await client.chat.completions.create(**ASK)
            for _ in range(3):
                with pytest.raises(openai.BadRequestError) as calls:
                    await client.chat.completions.create(**ASK)
        async with proxy.client("tokens", limits=Limits(tokens=40)) as client:
            cut = await client.chat.completions.create(**ASK)
            with pytest.raises(openai.BadRequestError) as tokens:
                await client.chat.completions.create(**ASK)
        first, refused = await proxy.completions("calls")  # three refusals, one of them on record
        spent, over = await proxy.completions("tokens")
    assert (calls.value.code, tokens.value.code) == ("call_limit", "token_limit")
    assert (first.status, refused.status) == (CompletionStatus.DELIVERED, CompletionStatus.FAILED)
    assert refused.error is not None
    assert refused.error.startswith("call_limit: ")
    assert cut.usage is not None
    assert (cut.usage.total_tokens, cut.choices[0].finish_reason) == (40, "length")  # never more than it may use
    assert spent.usage.prompt_tokens + spent.usage.completion_tokens == 40
    assert over.error is not None
    assert over.error.startswith("token_limit: ")
    assert len(engine.requests) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_a_repeat_in_flight_is_joined(kafka, plain_folder, stream):
    body = json.dumps(ASK | {"stream": stream}).encode()
    async with (
        ScriptedEngine(texts(plain_folder, "hello world", delay_s=0.1)) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):

        async def raw(delay_s: float) -> bytes:
            await asyncio.sleep(delay_s)
            async with (
                aiohttp.ClientSession() as session,
                session.post(f"{proxy.url}/r/{proxy.token()}/v1/chat/completions", data=body) as response,
            ):
                return await response.read()

        one, other = await asyncio.gather(raw(0), raw(0.2))
        again = await raw(0)
        sampled, repeat, second = await proxy.completions()
    assert len(engine.requests) == 2  # the third is a deliberate second sample

    def told(stream_bytes: bytes) -> str:
        if not stream:
            return stream_bytes.decode()
        chunks = [json.loads(line[6:]) for line in stream_bytes.decode().split("\n\n") if line and "[DONE]" not in line]
        return chunks[0]["id"] + "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    assert told(one) == told(other) != told(again)
    assert (sampled.status, second.status) == (CompletionStatus.DELIVERED,) * 2
    assert (repeat.status, repeat.retry_of) == (CompletionStatus.REPLAYED, sampled.completion_id)
    assert (repeat.completion_token_ids, repeat.prompt_token_count) == (b"", 0)


async def test_a_retry_of_an_answered_call_is_replayed(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "one", "two")) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        body = json.dumps(ASK).encode()
        _, first, _ = await post(proxy, body, **{"x-stainless-retry-count": "0"})
        _, retried, _ = await post(proxy, body, **{"x-stainless-retry-count": "1"})
        async with proxy.client(attempt=2) as other_attempt:
            other = await other_attempt.chat.completions.create(**ASK)
        records = await proxy.completions()
    assert retried == first
    assert other.choices[0].message.content == "two"
    assert [record.status.value for record in records if record.attempt == 1] == ["delivered", "replayed"]


async def test_a_hang_up_of_one_of_two_callers_does_not_abort(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "hello world", delay_s=0.2)) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
        proxy.client() as client,
    ):

        async def impatient() -> None:
            async with asyncio.timeout(0.3), proxy.client() as other:
                await other.chat.completions.create(**ASK)

        gone, patient = await asyncio.gather(impatient(), client.chat.completions.create(**ASK), return_exceptions=True)
        records = await proxy.completions()
    assert isinstance(gone, TimeoutError)
    assert patient.choices[0].message.content == "hello world"
    assert (len(engine.requests), engine.aborted) == (1, [])
    assert [record.status.value for record in records if record.status is not CompletionStatus.REPLAYED] == [
        "delivered"
    ]


async def test_a_rollout_that_has_ended_takes_no_more_calls(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "hello")) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
        RecordProducer(kafka, "test") as producer,
        proxy.client() as client,
        proxy.client(attempt=2) as next_attempt,
    ):
        await client.chat.completions.create(**ASK)
        ended = RolloutEvent(
            rollout_id="r0", attempt=1, kind=RolloutEventKind.HARNESS_EXITED, end_reason=EndReason.COMPLETED
        )
        await producer.send(ROLLOUTS, ended)
        async with asyncio.timeout(10):
            while True:
                try:
                    await client.chat.completions.create(**ASK)
                except openai.ConflictError as error:
                    refused = error
                    break
                await asyncio.sleep(0.05)
        await next_attempt.chat.completions.create(**ASK)
    assert refused.code == "rollout_finished"
