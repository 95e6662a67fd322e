"""Token ids in, token ids and log-probabilities out."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.contract.learner.serving.engines import Api, forward_logprobs, greedy, next_logprobs

TOLERANCE = 1e-4


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(f"{length}/{seed}")
    return [rng.randrange(3, 512) for _ in range(length)]


async def test_logprobs_are_those_of_the_distribution_sampled_from(api: Api, tiny_folder: Path) -> None:
    prompts = [prompt(length) for length in (1, 5, 35, 70, 200)]
    replies = await asyncio.gather(*(api.generate(p, max_tokens=20, temperature=0.7) for p in prompts))
    for given, reply in zip(prompts, replies, strict=True):
        assert len(reply.token_ids) == 20
        assert reply.finish_reason == "length"
        assert reply.versions == [("policy@0", 0, 20)]
        expected = forward_logprobs(tiny_folder, given, reply.token_ids, temperature=0.7)
        assert reply.logprobs == pytest.approx(expected, abs=TOLERANCE)


async def test_top_k_and_top_p_renormalise(api: Api, tiny_folder: Path) -> None:
    given = prompt(8)
    reply = await api.generate(given, max_tokens=1, top_k=1)
    assert reply.logprobs == pytest.approx([0.0], abs=TOLERANCE)
    assert reply.token_ids == greedy(tiny_folder, given, 1)
    two = [await api.generate(given, max_tokens=1, top_k=2, seed=seed) for seed in range(12)]
    seen = {reply.token_ids[0]: reply.logprobs[0] for reply in two}
    assert len(seen) == 2
    plain = next_logprobs(tiny_folder, given)
    first, second = seen
    assert seen[first] - seen[second] == pytest.approx(plain[first] - plain[second], abs=TOLERANCE)
    assert sum(2.718281828**value for value in seen.values()) == pytest.approx(1.0, abs=1e-3)
    narrow = await api.generate(given, max_tokens=1, top_p=1e-6)
    assert narrow.token_ids == reply.token_ids
    assert narrow.logprobs == pytest.approx([0.0], abs=TOLERANCE)


async def test_greedy_agrees_with_transformers(api: Api, tiny_folder: Path) -> None:
    given = prompt(30)
    reply = await api.generate(given, max_tokens=24, temperature=0)
    assert reply.token_ids == greedy(tiny_folder, given, 24)
    assert reply.logprobs == pytest.approx(forward_logprobs(tiny_folder, given, reply.token_ids), abs=TOLERANCE)


async def test_requests_side_by_side_do_not_disturb_each_other(api: Api) -> None:
    prompts = [prompt(length, seed) for length in (2, 17, 90, 300) for seed in range(3)]
    alone = [(await api.generate(p, max_tokens=10, temperature=0)).token_ids for p in prompts]
    together = await asyncio.gather(*(api.generate(p, max_tokens=10, temperature=0) for p in prompts))
    assert [reply.token_ids for reply in together] == alone


async def test_a_seed_repeats_and_its_absence_does_not(api: Api) -> None:
    given = prompt(6)
    first = await api.generate(given, max_tokens=12, seed=7)
    again, streamed, other = await asyncio.gather(
        api.generate(given, max_tokens=12, seed=7),
        api.stream(given, max_tokens=12, seed=7),
        api.generate(given, max_tokens=12, seed=8),
    )
    assert first.token_ids == again.token_ids == streamed.token_ids != other.token_ids
    free = [await api.generate(given, max_tokens=12) for _ in range(2)]
    assert free[0].token_ids != free[1].token_ids


async def test_a_stream_is_the_whole_in_pieces(api: Api) -> None:
    given = prompt(20)
    whole = await api.generate(given, max_tokens=15, temperature=0, request_id="one")
    streamed = await api.stream(given, max_tokens=15, temperature=0, request_id="two")
    assert (whole.request_id, streamed.request_id) == ("generate-tokens-one", "generate-tokens-two")
    assert streamed.token_ids == whole.token_ids
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=TOLERANCE)
    assert streamed.versions == whole.versions == [("policy@0", 0, 15)]
    assert streamed.finish_reason == whole.finish_reason == "length"
    assert streamed.usage["prompt_tokens"] == whole.usage["prompt_tokens"] == 20


async def test_tokens_are_streamed_as_they_come(api: Api) -> None:
    counts = [len(c["choices"][0]["token_ids"]) async for c in api.chunks(prompt(5), max_tokens=30) if c["choices"]]
    assert sum(counts) == 30
    assert len(counts) >= 10


async def test_a_stop_token_ends_the_completion_and_is_part_of_it(api: Api) -> None:
    given = prompt(9)
    free = await api.generate(given, max_tokens=40, temperature=1.0, seed=3)
    stop = free.token_ids[20]
    first = free.token_ids.index(stop)
    stopped = await api.generate(given, max_tokens=40, temperature=1.0, seed=3, stop_token_ids=[stop])
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
    assert stopped.versions == [("policy@0", 0, first + 1)]


async def test_the_models_own_end_token_stops(api: Api) -> None:
    end = 2  # <|im_end|>; a random model says it once in 512 tokens
    asked = (api.generate(prompt(4, n), max_tokens=900, seed=n, ignore_eos=False) for n in range(6))
    replies = await asyncio.gather(*asked)
    stopped = [reply for reply in replies if reply.finish_reason == "stop"]
    assert stopped
    for reply in stopped:
        assert reply.token_ids.index(end) == len(reply.token_ids) - 1
        assert reply.stop_reason is None
    assert all(end not in reply.token_ids for reply in replies if reply.finish_reason == "length")


async def test_the_likeliest_tokens_come_along(api: Api, tiny_folder: Path) -> None:
    given = prompt(3)
    body = {"token_ids": given, "sampling_params": {"max_tokens": 1, "logprobs": 3, "temperature": 1.0, "seed": 5}}
    _, answer = await api.post("/inference/v1/generate", body)
    (entry,) = answer["choices"][0]["logprobs"]["content"]
    everything = next_logprobs(tiny_folder, given)
    order = sorted(range(512), key=lambda token: -everything[token])
    assert entry["rank"] == order.index(entry["token_id"]) + 1
    listed = [candidate["token_id"] for candidate in entry["top_logprobs"]]
    assert listed == [entry["token_id"], *(token for token in order if token != entry["token_id"])][:3]
    for candidate in entry["top_logprobs"]:
        assert candidate["logprob"] == pytest.approx(everything[candidate["token_id"]], abs=TOLERANCE)


async def test_a_completion_ends_where_the_context_does(api: Api) -> None:
    capped = await api.generate(prompt(1020), max_tokens=50)
    assert (len(capped.token_ids), capped.finish_reason) == (4, "length")


async def test_what_cannot_be_done_is_refused(api: Api) -> None:
    status, message = await api.refused(prompt(1024), max_tokens=4)
    assert (status, "longer than the maximum model length of 1024" in message) == (400, True)
    assert "(length 1024)" in message
    status, message = await api.refused(prompt(1100), max_tokens=4)
    assert (status, "longer than the maximum model length of 1024" in message) == (400, True)
    assert "(length 1100)" in message
    assert await api.refused([5], model="gpt-5") == (404, "The model `gpt-5` does not exist. Valid aliases: policy.")
    assert await api.refused([512]) == (400, "Token id 512 is out of vocabulary")
    for sampling in ({"temperature": -1}, {"top_p": 0}, {"max_tokens": 0}, {"logprobs": 100}):
        status, message = await api.refused([5], **sampling)
        assert status == 400
        assert next(iter(sampling)) in message
    assert (await api.refused([]))[0] == 400


async def test_an_aborted_request_ends_with_what_it_has(api: Api) -> None:
    given = prompt(4)
    arrived: list[dict] = []

    async def stream() -> None:
        async for chunk in api.chunks(given, max_tokens=1000, request_id="long"):
            arrived.append(chunk)
            if len(arrived) == 5:
                assert await api.post("/inference/v1/abort_requests", {"request_ids": [chunk["request_id"]]}) == (
                    200,
                    "",
                )

    bystander = asyncio.create_task(api.generate(given, max_tokens=300, temperature=0))
    await stream()
    last = arrived[-2]["choices"][0]
    tokens = sum(len(chunk["choices"][0]["token_ids"]) for chunk in arrived[:-1])
    assert last["finish_reason"] == "abort"
    assert last["weight_versions"] == [{"version": "policy@0", "start": 0, "end": tokens}]
    assert 5 <= tokens < 1000
    assert len((await bystander).token_ids) == 300


async def test_a_client_that_hangs_up_aborts(api: Api) -> None:
    async for _ in api.chunks(prompt(4), max_tokens=1000):
        break
    whole = asyncio.create_task(api.generate(prompt(5), max_tokens=1000))
    await asyncio.sleep(0.2)
    whole.cancel()
    before = await api.metric("vllm:generation_tokens_total")
    await api.until("vllm:num_requests_running", lambda value: value == 0)
    assert await api.metric("vllm:generation_tokens_total") - before < 700
