"""New weights under requests that are in flight."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from learner.serving.client import EngineClient
from learner.serving.errors import WeightsRefused
from tests.contract.learner.serving.engines import Api, Reply, forward_logprobs, greedy

TOLERANCE = 1e-4
GIVEN = [11, 47, 85, 300, 7]


async def swapped_in_flight(api: Api, client: EngineClient, folder: Path, count: int) -> list[Reply]:
    """Completions that were under way while the weights became those of `folder`."""
    prompts = [[*GIVEN, n] for n in range(count)]
    tasks = [asyncio.create_task(api.generate(p, max_tokens=700)) for p in prompts]
    before = await api.metric("vllm:generation_tokens_total")
    await api.until("vllm:generation_tokens_total", lambda value: value >= before + 20 * count)
    await client.load(folder, "policy@7")
    return await asyncio.gather(*tasks)


async def test_requests_in_flight_go_on_with_the_new_weights(
    api: Api, client: EngineClient, tiny_folder: Path, second_folder: Path
) -> None:
    for n, reply in enumerate(await swapped_in_flight(api, client, second_folder, 3)):
        assert (len(reply.token_ids), reply.finish_reason) == (700, "length")
        (old, start, swap), (new, again, end) = reply.versions
        assert (old, start, new, again, end) == ("policy@0", 0, "policy@7", swap, 700)
        assert 0 < swap < 700
        # Keys and values are made again, so each token is exactly what the version named beside it says.
        under_old = forward_logprobs(tiny_folder, [*GIVEN, n], reply.token_ids)
        under_new = forward_logprobs(second_folder, [*GIVEN, n], reply.token_ids)
        assert reply.logprobs[:swap] == pytest.approx(under_old[:swap], abs=TOLERANCE)
        assert reply.logprobs[swap:] == pytest.approx(under_new[swap:], abs=TOLERANCE)


async def test_nothing_old_is_left_in_a_cache(
    api: Api, client: EngineClient, tiny_folder: Path, second_folder: Path
) -> None:
    given = [3 + n % 500 for n in range(300)]
    first = await api.generate(given, max_tokens=8, temperature=0)
    repeated = await api.generate(given, max_tokens=8, temperature=0)
    assert repeated.usage["prompt_tokens_details"]["cached_tokens"] > 100
    assert first.token_ids == repeated.token_ids == greedy(tiny_folder, given, 8)
    await client.load(second_folder, "policy@1")
    fresh = await api.generate(given, max_tokens=8, temperature=0)
    assert fresh.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert fresh.token_ids == greedy(second_folder, given, 8)
    assert fresh.logprobs == pytest.approx(forward_logprobs(second_folder, given, fresh.token_ids), abs=TOLERANCE)
    assert fresh.versions == [("policy@1", 0, 8)]
    assert await client.weight_version() == "policy@1"


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


def truncated(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def lacks_a_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")


def has_one_too_many(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.2.mlp.up_proj.weight"] = weights["model.layers.1.mlp.up_proj.weight"].clone()
    save_file(weights, folder / "model.safetensors")


def has_another_shape(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"][:500].clone()
    save_file(weights, folder / "model.safetensors")


Damage = Callable[[Path], None]


@pytest.mark.parametrize("damage", [missing, truncated, lacks_a_tensor, has_one_too_many, has_another_shape])
async def test_weights_that_do_not_fit_change_nothing(
    api: Api,
    client: EngineClient,
    tiny_folder: Path,
    second_folder: Path,
    tmp_path: Path,
    damage: Callable[[Path], None],
) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(second_folder, bad)
    damage(bad)
    with pytest.raises(WeightsRefused, match=r"bad|path"):
        await client.load(bad, "policy@8")
    reply = await api.generate(GIVEN, max_tokens=8, temperature=0)
    assert reply.token_ids == greedy(tiny_folder, GIVEN, 8)
    assert reply.logprobs == pytest.approx(forward_logprobs(tiny_folder, GIVEN, reply.token_ids), abs=TOLERANCE)
    assert reply.versions == [("policy@0", 0, 8)]
    await client.load(second_folder, "policy@9")
    reply = await api.generate(GIVEN, max_tokens=8, temperature=0)
    assert reply.token_ids == greedy(second_folder, GIVEN, 8)
    assert reply.versions == [("policy@9", 0, 8)]


async def test_an_update_left_open_is_closed_by_the_next(api: Api, client: EngineClient, second_folder: Path) -> None:
    assert (await api.post("/pause?mode=keep"))[0] == 200
    assert (await api.post("/start_weight_update"))[0] == 200
    waiting = asyncio.create_task(api.generate(GIVEN, max_tokens=4, temperature=0))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await client.load(second_folder, "policy@2")
    reply = await waiting
    assert reply.token_ids == greedy(second_folder, GIVEN, 4)
    assert reply.versions == [("policy@2", 0, 4)]


async def test_updates_out_of_order_are_refused(api: Api, client: EngineClient, second_folder: Path) -> None:
    status, _ = await api.post("/update_weights", {"update_info": {"path": str(second_folder)}})
    assert status >= 400
    status, _ = await api.post("/finish_weight_update", {"weight_version": "policy@3"})
    assert status >= 400
    assert await client.weight_version() == "policy@0"
    await client.resume()  # when nothing is paused
    await client.name_weights("policy@4")
    assert (await api.generate(GIVEN, max_tokens=2)).versions == [("policy@4", 0, 2)]


async def test_metrics_have_what_telemetry_needs(api: Api, client: EngineClient) -> None:
    before = await client.metrics()
    await api.generate(GIVEN, max_tokens=10)
    after = await client.metrics()
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 10
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
