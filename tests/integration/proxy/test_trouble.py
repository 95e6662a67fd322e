"""Engines that fail, harnesses that hang up, a log that does not answer: what the other side gets to see."""

import asyncio
import json

import aiohttp
import pytest
from openai import APIStatusError

from ingest.errors import DeliveryError
from proxy.recorder import Recorder
from schemas import CompletionStatus, FinishReason, VersionRun
from schemas.arrays import unpack_floats, unpack_ids
from tests.support.model_folder import END
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.scripted_engine import Reply, Request, ScriptedEngine, logprob_of, texts

ASK = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STOP = 2


def scripted(*replies: Reply):
    waiting = list(replies)

    def script(_request: Request) -> Reply:
        return waiting.pop(0)

    return script


IDS = [300, 301, 302, 303, 304, STOP]


@pytest.mark.parametrize("trouble", ["cut", "error", "abort", "500"])
async def test_a_reply_goes_on_where_its_engine_broke_off(kafka, plain_folder, trouble):
    broken = Reply(IDS, trouble=trouble, after=0 if trouble == "500" else 2, versions={0: "policy@2"})
    rest = Reply(IDS if trouble == "500" else IDS[2:], versions={0: "policy@3", 2: "policy@4"})
    known = Reply([305, STOP], versions={0: "policy@2"})
    async with (
        ScriptedEngine(scripted(known, broken, rest)) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
        proxy.client() as client,
    ):
        await client.chat.completions.create(**ASK)
        async with client.chat.completions.stream(**ASK) as events:
            deltas = [event.delta async for event in events if event.type == "content.delta"]
        _, record = await proxy.completions()
    assert unpack_ids(record.completion_token_ids) == IDS
    assert unpack_floats(record.rollout_logprobs) == [logprob_of(i) for i in IDS]
    assert record.status is CompletionStatus.DELIVERED
    if trouble == "500":
        runs = [VersionRun(version=3, start=0, end=2), VersionRun(version=4, start=2, end=6)]
    else:
        # what this engine told last, then what it told in the end
        runs = [VersionRun(version=v, start=a, end=b) for v, a, b in ((2, 0, 2), (3, 2, 4), (4, 4, 6))]
    assert record.policy_version_runs == runs
    assert (record.policy_version_min, record.policy_version_max) == (runs[0].version, 4)
    first, second = engine.requests[1:]
    assert second.token_ids == first.token_ids + ([] if trouble == "500" else IDS[:2])
    assert first.sampling["max_tokens"] - second.sampling["max_tokens"] == (0 if trouble == "500" else 2)
    assert second.request_id != first.request_id
    assert "".join(deltas) == json.loads(record.response)["content"]


async def test_an_engine_that_restarts_in_mid_stream_is_invisible(kafka, plain_folder):
    engine = await ScriptedEngine(scripted(Reply(IDS * 4, delay_s=0.05), Reply(IDS))).start()
    async with running_proxy(kafka, plain_folder, engine.url) as proxy, proxy.client() as client:
        async with client.chat.completions.stream(**ASK) as events:
            restarted = False
            async for event in events:
                if event.type == "content.delta" and not restarted:
                    restarted = True
                    await engine.stop()
                    await asyncio.sleep(0.5)  # connections are refused meanwhile
                    await engine.start()
            done = await events.get_final_completion()
        (record,) = await proxy.completions()
    await engine.stop()
    assert restarted
    sampled = unpack_ids(record.completion_token_ids)
    assert sampled[-len(IDS) :] == IDS
    assert engine.requests[1].token_ids == engine.requests[0].token_ids + sampled[: -len(IDS)]
    assert len(sampled) > len(IDS)
    assert done.choices[0].message.content == json.loads(record.response)["content"]
    assert record.status is CompletionStatus.DELIVERED


async def test_a_stream_cut_after_its_stop_token_is_whole(kafka, plain_folder):
    replies = scripted(Reply([305, STOP]), Reply([*IDS, 300], trouble="cut", after=len(IDS)))
    async with ScriptedEngine(replies) as engine, running_proxy(kafka, plain_folder, engine.url) as proxy:
        async with proxy.client() as client:
            await client.chat.completions.create(**ASK)
            await client.chat.completions.create(**ASK)
        _, record = await proxy.completions()
    assert len(engine.requests) == 2
    assert (unpack_ids(record.completion_token_ids), record.finish_reason) == (IDS, FinishReason.STOP)


async def test_the_other_engine_takes_over(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "hello")) as engine,
        running_proxy(kafka, plain_folder, "http://127.0.0.1:9", engine.url) as proxy,
    ):
        for rollout in ("r0", "r1", "r2", "r3"):  # some of them prefer the engine that is not there
            async with proxy.client(rollout) as client:
                done = await client.chat.completions.create(**ASK)
            assert done.choices[0].message.content == "hello"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_stays_away_is_a_clean_failure_on_record(kafka, plain_folder, stream):
    async with running_proxy(kafka, plain_folder, "http://127.0.0.1:9", engine_retry_s=0.3) as proxy:
        async with proxy.client() as client:
            with pytest.raises(APIStatusError) as refused:
                await client.chat.completions.create(**ASK, stream=stream)
        (record,) = await proxy.completions()
    assert (refused.value.status_code, refused.value.code) == (503, "engine_unavailable")
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert (record.status, record.finish_reason) == (CompletionStatus.FAILED, FinishReason.ERROR)
    assert record.error is not None
    assert record.error.startswith("engine_unavailable: http://127.0.0.1:9")


async def test_a_failure_in_mid_stream_is_an_error_event(kafka, plain_folder):
    broken = scripted(*[Reply(IDS, trouble="cut", after=2)] * 1)
    async with (
        ScriptedEngine(broken) as engine,
        running_proxy(kafka, plain_folder, engine.url, engine_retry_s=0.3) as proxy,
    ):
        raw = await read_raw(proxy, stream=True)
        (record,) = await proxy.completions()
    *_, last = [line for line in raw.split("\n\n") if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_unavailable"
    assert "[DONE]" not in raw
    assert unpack_ids(record.completion_token_ids) == IDS[:2]
    assert record.status is CompletionStatus.FAILED


async def test_what_the_engine_refuses_is_not_tried_again(kafka, plain_folder):
    too_long = Reply([], trouble="400", message="This model's maximum context length is 16 tokens.")
    wrong = Reply([], trouble="400", message="no such model")
    async with (
        ScriptedEngine(scripted(too_long, wrong)) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
        proxy.client() as client,
    ):
        with pytest.raises(APIStatusError) as first:
            await client.chat.completions.create(**ASK)
        with pytest.raises(APIStatusError) as second:
            await client.chat.completions.create(**ASK)
        records = await proxy.completions()
    assert (first.value.status_code, first.value.code) == (400, "context_length_exceeded")
    assert (second.value.status_code, second.value.code) == (502, "engine_refused")
    assert [record.status for record in records] == [CompletionStatus.FAILED] * 2
    assert records[1].error is not None
    assert "no such model" in records[1].error
    assert records[1].retry_of == records[0].completion_id


async def read_raw(proxy: RunningProxy, *, stream: bool, **fields: object) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{proxy.url}/r/{proxy.token()}/v1/chat/completions", json=ASK | {"stream": stream} | fields
        ) as response,
    ):
        return await response.text()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_harness_that_hangs_up_aborts_the_engine_and_is_on_record(kafka, plain_folder, stream):
    async with (
        ScriptedEngine(scripted(Reply(IDS * 100, delay_s=0.02))) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await read_raw(proxy, stream=stream)
        async with asyncio.timeout(5):
            while not (records := await proxy.completions()):
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.1)
    (record,) = records
    assert (record.status, record.finish_reason) == (CompletionStatus.ABORTED, FinishReason.ABORT)
    assert record.error == "the harness hung up"
    sampled = unpack_ids(record.completion_token_ids)
    assert sampled == (IDS * 100)[: len(sampled)]
    assert 1 < len(sampled) < 300
    assert record.completion_id in engine.aborted
    assert f"generate-tokens-{record.completion_id}" in engine.aborted


async def test_a_retry_after_a_hang_up_is_sampled_and_says_what_it_repeats(kafka, plain_folder, monkeypatch):
    record = Recorder.record

    async def slowly(self, completion):
        await asyncio.sleep(0.3 if completion.status is CompletionStatus.ABORTED else 0)
        await record(self, completion)

    monkeypatch.setattr(Recorder, "record", slowly)
    async with (
        ScriptedEngine(scripted(Reply(IDS * 100, delay_s=0.02), Reply(IDS))) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await read_raw(proxy, stream=False)
        await asyncio.sleep(0.05)  # the first call's record is still on its way
        retried = json.loads(await read_raw(proxy, stream=False))
        await asyncio.sleep(0.5)
        aborted, second = await proxy.completions()
    assert retried["usage"]["completion_tokens"] == len(IDS)
    assert aborted.status is CompletionStatus.ABORTED
    assert second.retry_of == aborted.completion_id


@pytest.fixture
def held_record(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Records wait for this event before they are sent."""
    gate = asyncio.Event()
    record = Recorder.record

    async def hold(self, completion):
        await gate.wait()
        await record(self, completion)

    monkeypatch.setattr(Recorder, "record", hold)
    return gate


async def test_a_stream_does_not_end_before_its_record_is_acknowledged(kafka, plain_folder, held_record):
    async with (
        ScriptedEngine(texts(plain_folder, "hello world")) as engine,
        running_proxy(kafka, plain_folder, engine.url, keep_alive_s=0.1) as proxy,
        aiohttp.ClientSession() as session,
        session.post(f"{proxy.url}/r/{proxy.token()}/v1/chat/completions", json=ASK | {"stream": True}) as response,
    ):
        told = b""
        while told.count(b"keep-alive") < 3:
            told += await response.content.readany()
        assert b"world" in told  # tokens are not held back
        assert b'"finish_reason":"stop"' not in told
        assert b"[DONE]" not in told
        assert await proxy.completions() == []
        held_record.set()
        while b"[DONE]" not in told:
            told += await response.content.readany()
        assert len(await proxy.completions()) == 1  # readable at the moment of the last byte
    assert b'"finish_reason":"stop"' in told


async def test_a_whole_reply_does_not_begin_before_its_record_is_acknowledged(kafka, plain_folder, held_record):
    async with (
        ScriptedEngine(texts(plain_folder, "hello")) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        reply = asyncio.create_task(read_raw(proxy, stream=False))
        done, _ = await asyncio.wait([reply], timeout=0.5)
        assert not done
        held_record.set()
        assert json.loads(await reply)["choices"][0]["message"]["content"] == "hello"
        assert len(await proxy.completions()) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_log_does_not_take_is_not_answered(kafka, plain_folder, stream, monkeypatch):
    async def refuse(self, completion):
        raise DeliveryError("the broker is away")

    monkeypatch.setattr(Recorder, "record", refuse)
    async with (
        ScriptedEngine(texts(plain_folder, "hello")) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        raw = await read_raw(proxy, stream=stream)
        assert await proxy.completions() == []
    error = json.loads(raw.split("\n\n")[-2].removeprefix("data: ") if stream else raw)["error"]
    assert error == {
        "message": "the completion could not be recorded",
        "type": "server_error",
        "param": None,
        "code": "not_recorded",
    }
    assert "[DONE]" not in raw


async def test_a_stream_that_waits_says_so(kafka, plain_folder):
    async with (
        ScriptedEngine(scripted(Reply(IDS, first_delay_s=0.5))) as engine,
        running_proxy(kafka, plain_folder, engine.url, keep_alive_s=0.1) as proxy,
    ):
        raw = await read_raw(proxy, stream=True)
    head, *rest = raw.split("\n\n")
    assert json.loads(head.removeprefix("data: "))["choices"][0]["delta"]["role"] == "assistant"
    assert 3 <= rest.count(": keep-alive") <= 6
    assert raw.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(IDS, logprobs_lost=1), "logprobs"),
        (Reply(IDS, versions={0: "default"}), "'default'"),
    ],
)
async def test_what_does_not_align_is_answered_but_never_trained(kafka, plain_folder, reply, says):
    async with (
        ScriptedEngine(scripted(reply, Reply([305, STOP]))) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
        proxy.client() as client,
    ):
        done = await client.chat.completions.create(**ASK)
        echo = {"role": "assistant", "content": done.choices[0].message.content}
        again = [*ASK["messages"], echo, {"role": "user", "content": "more"}]
        await client.chat.completions.create(model="m", messages=again)
        first, second = await proxy.completions()
    assert first.status is CompletionStatus.FAILED
    assert first.error is not None
    assert says in first.error
    assert unpack_ids(first.completion_token_ids) == IDS
    assert (second.status, second.parent_id) == (
        CompletionStatus.DELIVERED,
        None,
    )  # nothing hangs on what is not trained


async def test_a_stopping_proxy_ends_calls_on_record(kafka, plain_folder, monkeypatch):
    monkeypatch.setattr("proxy.service._DRAIN_S", 0.3)
    async with ScriptedEngine(scripted(Reply(IDS * 100, delay_s=0.05))) as engine:
        async with running_proxy(kafka, plain_folder, engine.url) as proxy:
            reply = asyncio.create_task(read_raw(proxy, stream=True))
            while not engine.requests:
                await asyncio.sleep(0.01)
        raw = await reply
        (record,) = await proxy.completions()
    assert json.loads(raw.split("\n\n")[-2].removeprefix("data: "))["error"]["code"] == "proxy_stopping"
    assert record.status is CompletionStatus.ABORTED
    assert END not in raw
