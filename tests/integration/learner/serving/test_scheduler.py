"""The scheduler on the real tiny model: what is computed, what is shared, what new weights do."""

from pathlib import Path

import pytest
import torch

from learner.serving.embedded.model import PackedModel
from learner.serving.embedded.scheduler import Delta, Scheduler, Sequence
from learner.serving.protocol import SamplingParams
from tests.contract.learner.serving.engines import forward_logprobs, greedy, other_weights

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=0)
PROMPT = [3 + n % 500 for n in range(40)]


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> PackedModel:
    torch.set_num_threads(1)
    return PackedModel(tiny_folder, "cpu")


@pytest.fixture
def base(model: PackedModel, tiny_folder: Path) -> PackedModel:
    model.load_weights(model.read_weights(tiny_folder))
    return model


def scheduler(model: PackedModel, **options: int) -> Scheduler:
    limits = {"max_running": 8, "step_tokens": 512, "prompt_cache_tokens": 10_000, **options}
    return Scheduler(model, "policy@0", **limits)


def request(prompt: list[int], count: int, name: str = "r") -> Sequence:
    return Sequence(name, prompt, GREEDY, max_tokens=count, stop_ids=frozenset())


def finish(engine: Scheduler, steps: int = 1000) -> list[Delta]:
    deltas: list[Delta] = []
    for _ in range(steps):
        if not (engine.running or engine.waiting):
            return deltas
        deltas += engine.step()
    raise AssertionError("it does not come to an end")


def test_equal_prompts_of_a_group_are_computed_once(base: PackedModel, tiny_folder: Path) -> None:
    engine = scheduler(base)
    group = [request(PROMPT, 5) for _ in range(8)]
    for one in group:
        engine.add(one)
    finish(engine)
    assert all(one.sampled == greedy(tiny_folder, PROMPT, 5) for one in group)
    assert [one.cached_tokens for one in group] == [0] + [39] * 7
    # The prompt, then the last prompt token of seven, then four tokens of eight; the fifth is never computed.
    assert engine.counters.computed_tokens == 40 + 7 + 8 * 4
    assert engine.counters.prompt_tokens == 8 * 40
    assert engine.counters.cached_tokens == 7 * 39
    assert engine.counters.generation_tokens == 40


def test_the_next_turn_computes_only_what_is_new(base: PackedModel, tiny_folder: Path) -> None:
    engine = scheduler(base)
    first = request(PROMPT, 6)
    engine.add(first)
    finish(engine)
    turn = PROMPT + first.sampled + [9, 8, 7]
    before = engine.counters.computed_tokens
    second = request(turn, 4)
    engine.add(second)
    finish(engine)
    assert second.sampled == greedy(tiny_folder, turn, 4)
    # Of 49 tokens 45 are known: the sixth sampled one was never computed.
    assert second.cached_tokens == 45
    assert engine.counters.computed_tokens - before == 4 + 3


def test_long_prompts_are_taken_in_pieces_beside_running_requests(base: PackedModel, tiny_folder: Path) -> None:
    engine = scheduler(base, step_tokens=32)
    long = [9 + n * 7 % 500 for n in range(200)]
    running = request(PROMPT[:5], 30, "running")
    engine.add(running)
    engine.step()
    engine.add(request(long, 3, "long"))
    sizes = []
    while engine.waiting or any(one.request_id == "long" for one in engine.running):
        before = engine.counters.computed_tokens
        deltas = engine.step()
        sizes.append(engine.counters.computed_tokens - before)
        assert "running" in [delta.sequence.request_id for delta in deltas]
    # 31 of the prompt beside the running one's token, six times; the 14 left over; two tokens of each.
    assert sizes == [32] * 6 + [15, 2, 2]
    finish(engine)
    assert running.sampled == greedy(tiny_folder, PROMPT[:5], 30)


def test_no_more_run_than_allowed_and_none_is_forgotten(base: PackedModel) -> None:
    engine = scheduler(base, max_running=3)
    requests = [request([n + 3, n + 4], 4 + n % 3, str(n)) for n in range(10)]
    for one in requests:
        engine.add(one)
    order: list[str] = []
    while engine.running or engine.waiting:
        order += [delta.sequence.request_id for delta in engine.step() if delta.finish_reason]
        assert len(engine.running) <= 3
    assert sorted(order, key=int) == [str(n) for n in range(10)]
    assert [len(one.sampled) for one in requests] == [4 + n % 3 for n in range(10)]


def test_new_weights_make_keys_and_values_anew(base: PackedModel, tiny_folder: Path, tmp_path: Path) -> None:
    second = other_weights(tiny_folder, tmp_path / "second", seed=2)
    engine = scheduler(base)
    group = [request([*PROMPT, n], 12) for n in range(2)]
    for one in group:
        engine.add(one)
    deltas = [delta for _ in range(6) for delta in engine.step()]
    engine.drop_caches(running=True)
    base.load_weights(base.read_weights(second))
    engine.version = "policy@1"
    deltas += finish(engine)
    for one in group:
        swap = dict((version, start) for version, start in one.versions)["policy@1"]
        assert one.versions == [("policy@0", 0), ("policy@1", swap)]
        logprobs = [delta.new.logprob for delta in deltas if delta.sequence is one and delta.new]
        assert logprobs[:swap] == pytest.approx(forward_logprobs(tiny_folder, one.prompt, one.sampled)[:swap], abs=1e-4)
        assert logprobs[swap:] == pytest.approx(forward_logprobs(second, one.prompt, one.sampled)[swap:], abs=1e-4)


def test_kept_keys_are_not_shared(base: PackedModel, tiny_folder: Path, tmp_path: Path) -> None:
    second = other_weights(tiny_folder, tmp_path / "second", seed=3)
    engine = scheduler(base)
    old = request(PROMPT, 8)
    engine.add(old)
    engine.step()
    engine.drop_caches(running=False)
    base.load_weights(base.read_weights(second))
    during = request(PROMPT, 3)
    engine.add(during)
    finish(engine)
    after = request(PROMPT, 3)
    engine.add(after)
    finish(engine)
    assert during.cached_tokens == 0
    assert after.cached_tokens == 39  # what `during` computed, not what `old` left
    assert during.sampled == after.sampled == greedy(second, PROMPT, 3)


def test_an_abort_ends_waiting_and_running_ones(base: PackedModel) -> None:
    engine = scheduler(base, max_running=1)
    for name in ("a", "b", "c"):
        engine.add(request([int(name, 16), 4], 50, name))
    engine.step()
    ended = engine.abort(lambda sequence: sequence.request_id in ("a", "c", "unknown"))
    assert sorted((delta.sequence.request_id, delta.finish_reason) for delta in ended) == [
        ("a", "abort"),
        ("c", "abort"),
    ]
    assert {delta.sequence.request_id for delta in finish(engine)} == {"b"}
