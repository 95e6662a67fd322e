"""Whole conversations through the official SDK, on a real broker: what is recorded is what the engine saw."""

import json

import pytest
from openai.types.chat import ChatCompletionMessageParam

from proxy.conversation import Message, ToolCall
from proxy.rendering.toolcalls import written_call
from schemas import CompletionStatus, Sampling
from schemas.arrays import unpack_floats, unpack_ids
from schemas.topics import BLOBS
from tests.support.proxies import RunningProxy, running_proxy
from tests.support.scripted_engine import ScriptedEngine, logprob_of, texts

TOOLS = [{"type": "function", "function": {"name": "read", "description": "Reads", "parameters": {"type": "object"}}}]
READ = written_call(ToolCall("", "read", '{"path": "a.txt"}'))
TURNS = [f"Let me look. 🙂\n{READ}", f"{READ}\n{READ}", "It says hello."]


async def run_agent(client, stream: bool, turns: int = 3) -> list[ChatCompletionMessageParam]:
    """A small tool loop: re-serialises arguments and changes call ids, as real harnesses do."""
    messages: list = [{"role": "system", "content": "You help."}, {"role": "user", "content": "What is in a.txt?"}]
    for _ in range(turns):
        if stream:
            async with client.chat.completions.stream(
                model="any", messages=messages, tools=TOOLS, stream_options={"include_usage": True}
            ) as events:
                done = await events.get_final_completion()
        else:
            done = await client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
        message = done.choices[0].message
        calls = [
            {
                "id": call.id.upper(),
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": json.dumps(json.loads(call.function.arguments), separators=(",", ":")),
                },
            }
            for call in message.tool_calls or []
        ]
        assert done.choices[0].finish_reason == ("tool_calls" if calls else "stop")
        assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
        messages.append(
            {"role": "assistant", "content": [{"type": "text", "text": message.content}] if message.content else None}
            | ({"tool_calls": calls} if calls else {})
        )
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "hello\n"} for call in calls]
    return messages


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("folder", ["plain_folder", "hermes_folder"])
async def test_each_turn_continues_the_recorded_tokens(kafka, folder, stream, request):
    model = request.getfixturevalue(folder)
    async with (
        ScriptedEngine(texts(model, *TURNS, chunk_tokens=3)) as engine,
        running_proxy(kafka, model, engine.url) as proxy,
        proxy.client() as client,
    ):
        messages = await run_agent(client, stream)
        records = await proxy.completions()

    assert [message["role"] for message in messages[2:]] == [
        "assistant",
        "tool",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert messages[2]["content"] == [{"type": "text", "text": "Let me look. 🙂\n"}]
    assert messages[-1]["content"] == [{"type": "text", "text": "It says hello."}]
    assert [record.parent_id for record in records] == [None, records[0].completion_id, records[1].completion_id]
    before: list[int] = []
    for record, seen in zip(records, engine.requests, strict=True):
        prompt = before + unpack_ids(record.prompt_token_ids)
        assert prompt == seen.token_ids
        assert record.prompt_token_count == record.usage.prompt_tokens == len(prompt)
        sampled = unpack_ids(record.completion_token_ids)
        assert unpack_floats(record.rollout_logprobs) == [logprob_of(i) for i in sampled]
        assert record.status is CompletionStatus.DELIVERED
        assert (record.policy_version_runs[0].start, record.policy_version_runs[0].end) == (0, len(sampled))
        before = prompt + sampled
    roles = [[message["role"] for message in json.loads(record.request_delta)] for record in records]
    assert roles == [["user"], ["tool"], ["tool", "tool"]]
    assert json.loads(records[0].response)["tool_calls"][0]["arguments"] == '{"path": "a.txt"}'


async def test_a_changed_system_prompt_begins_a_root_and_a_rewritten_past_forks(kafka, plain_folder):
    async with (
        ScriptedEngine(texts(plain_folder, "one", "two", "three", "four", "five")) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
        proxy.client() as client,
    ):

        async def ask(*contents: str, system: str = "You help.") -> None:
            roles = ["user", "assistant"] * 3
            messages = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=False)]
            await client.chat.completions.create(model="m", messages=[{"role": "system", "content": system}, *messages])

        await ask("a")
        await ask("a", "one", "b")
        await ask("a", "one", "another b")
        await ask("a", "one", "b", system="You hinder.")
        await ask("a", "One", "b")
        records = await proxy.completions()
    first = records[0].completion_id
    assert [record.parent_id for record in records] == [None, first, first, None, None]
    assert records[0].system_blob == records[4].system_blob != records[3].system_blob


async def test_system_prompts_and_tools_go_to_the_blob_topic_once(kafka, hermes_folder):
    from ingest.kafka.consumer import read_all

    async with (
        ScriptedEngine(texts(hermes_folder, *TURNS)) as engine,
        running_proxy(kafka, hermes_folder, engine.url) as proxy,
    ):
        for rollout in ("r0", "r1"):
            async with proxy.client(rollout) as client:
                await run_agent(client, stream=False, turns=1)
        records = await proxy.completions(None)
        blobs = {blob.record.sha256: blob.record for blob in await read_all(kafka, BLOBS)}
        count = len(await read_all(kafka, BLOBS))
    assert count == 2
    for record in records:
        assert blobs[record.system_blob].data == b"You help."
        assert json.loads(blobs[record.tools_blob].data) == TOOLS


async def test_sampling_is_the_rollouts_and_what_was_asked_for_is_on_record(kafka, plain_folder):
    sampling = Sampling(temperature=0.7, top_p=0.5, top_k=5, max_tokens=20, seed=100)
    async with (
        ScriptedEngine(texts(plain_folder, "x" * 30)) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
        proxy.client(sampling=sampling) as client,
        proxy.client("e0", sampling=sampling, evaluation=True) as other,
    ):
        for asked in (99, 8):
            done = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], temperature=0.1, top_p=0.9, max_tokens=asked
            )
            assert done.choices[0].finish_reason == "length"
        await other.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        trained, second = await proxy.completions()
        (evaluated,) = await proxy.completions("e0")
    assert trained.sampling == Sampling(temperature=0.7, top_p=1.0, top_k=-1, max_tokens=20, seed=100)
    assert second.sampling == Sampling(temperature=0.7, top_p=1.0, top_k=-1, max_tokens=8, seed=101)
    assert evaluated.sampling == sampling
    assert json.loads(second.sampling_requested) == {"temperature": 0.1, "top_p": 0.9, "max_tokens": 8}
    sent = engine.requests[0].sampling
    assert (sent["temperature"], sent["top_p"], sent["top_k"], sent["max_tokens"]) == (0.7, 1.0, -1, 20)
    assert (sent["logprobs"], sent["stop_token_ids"], sent["seed"]) == (1, [2], 100)
    assert len(unpack_ids(second.completion_token_ids)) == second.usage.completion_tokens == 8


async def test_a_malformed_call_goes_out_as_text_and_is_marked(kafka, hermes_folder):
    broken = 'See: <tool_call>\n{"name": "read", "argum</tool_call>'
    async with (
        ScriptedEngine(texts(hermes_folder, broken)) as engine,
        running_proxy(kafka, hermes_folder, engine.url) as proxy,
        proxy.client() as client,
    ):
        asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
        whole = await client.chat.completions.create(**asked)
        async with client.chat.completions.stream(**asked) as events:
            streamed = await events.get_final_completion()
        records = await proxy.completions()
    for done in (whole, streamed):
        assert done.choices[0].message.content == broken
        assert not done.choices[0].message.tool_calls
        assert done.choices[0].finish_reason == "stop"
    assert [json.loads(record.response)["malformed_calls"] for record in records] == [1, 1]


async def test_parallel_rollouts_do_not_mix(kafka, plain_folder):
    import asyncio

    async def one(proxy: RunningProxy, number: int) -> str:
        client = proxy.client(f"r{number}")
        async with client:
            done = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"n{number}"}])
        return done.choices[0].message.content or ""

    async with (
        ScriptedEngine(texts(plain_folder, "hello", delay_s=0.001)) as engine,
        running_proxy(kafka, plain_folder, engine.url) as proxy,
    ):
        answers = await asyncio.gather(*(one(proxy, number) for number in range(40)))
        records = await proxy.completions(None)
    assert answers == ["hello"] * 40
    assert sorted(record.rollout_id for record in records) == sorted(f"r{number}" for number in range(40))
    for record in records:
        assert json.loads(record.request_delta) == [{"role": "user", "content": f"n{record.rollout_id[1:]}"}]


def test_the_written_form_of_a_call_is_what_the_router_reads():
    assert READ == '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>'
    assert Message("assistant") == Message("assistant", "", ())
