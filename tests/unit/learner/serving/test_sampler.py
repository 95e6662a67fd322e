"""Drawing tokens: distributions, ranks, candidates."""

import math

import pytest
import torch

from learner.serving.embedded.sampler import processed_logprobs, sample
from learner.serving.protocol import SamplingParams

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
WEIGHTS = [math.exp(2), math.exp(1), 1.0, math.exp(-1)]


def draw(count: int, params: SamplingParams, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [sample(LOGITS, [params], [generator])[0].token_id for _ in range(count)]


def shares(tokens: list[int]) -> list[float]:
    return [tokens.count(token) / len(tokens) for token in range(4)]


def test_tokens_are_drawn_in_proportion() -> None:
    expected = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    assert shares(draw(4000, SamplingParams())) == pytest.approx(expected, abs=0.025)


def test_temperature_sharpens() -> None:
    sharp = [weight**2 for weight in WEIGHTS]
    expected = [weight / sum(sharp) for weight in sharp]
    assert shares(draw(4000, SamplingParams(temperature=0.5))) == pytest.approx(expected, abs=0.025)
    assert processed_logprobs(LOGITS, [SamplingParams(temperature=0.5)])[0].exp().tolist() == pytest.approx(expected)


def test_greedy_takes_the_likeliest_and_keeps_its_plain_logprob() -> None:
    (token,) = sample(LOGITS, [SamplingParams(temperature=0.0)], [torch.Generator()])
    assert (token.token_id, token.rank) == (0, 1)
    assert token.logprob == pytest.approx(math.log(WEIGHTS[0] / sum(WEIGHTS)))


def test_top_k_keeps_k() -> None:
    expected = [WEIGHTS[0] / (WEIGHTS[0] + WEIGHTS[1]), WEIGHTS[1] / (WEIGHTS[0] + WEIGHTS[1]), 0, 0]
    assert processed_logprobs(LOGITS, [SamplingParams(top_k=2)])[0].exp().tolist() == pytest.approx(expected)
    assert set(draw(300, SamplingParams(top_k=2))) == {0, 1}
    everything = processed_logprobs(LOGITS, [SamplingParams()])
    assert torch.equal(processed_logprobs(LOGITS, [SamplingParams(top_k=-1)]), everything)
    assert torch.equal(processed_logprobs(LOGITS, [SamplingParams(top_k=100)]), everything)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1), (0.65, 2), (0.9, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    # cumulated shares: 0.644, 0.881, 0.968, 1
    logprobs = processed_logprobs(LOGITS, [SamplingParams(top_p=top_p)])[0]
    total = sum(WEIGHTS[:kept])
    assert logprobs.exp().tolist() == pytest.approx([w / total for w in WEIGHTS[:kept]] + [0] * (4 - kept))


def test_rows_do_not_mix() -> None:
    logits = torch.tensor([[0.0, 9.0, 0.0], [9.0, 0.0, 0.0], [1.0, 2.0, 3.0]])
    params = [SamplingParams(temperature=0.0), SamplingParams(top_k=1), SamplingParams(temperature=2.0, logprobs=2)]
    first, second, third = sample(logits, params, [torch.Generator() for _ in params])
    assert (first.token_id, second.token_id, second.logprob) == (1, 0, 0.0)
    assert [(c.token_id, c.rank) for c in third.top] == [(2, 1), (1, 2)]
    assert third.top[0].logprob == pytest.approx(math.log(math.exp(1.5) / (math.exp(0.5) + math.e + math.exp(1.5))))
    assert (first.top, second.top) == ((), ())


def test_a_generator_repeats() -> None:
    params = SamplingParams()
    assert draw(50, params, seed=3) == draw(50, params, seed=3) != draw(50, params, seed=4)


def test_impossible_tokens_are_never_drawn() -> None:
    logits = torch.full((1, 50_000), -torch.inf)
    logits[0, 49_999] = 1.0
    for seed in range(20):
        (token,) = sample(logits, [SamplingParams()], [torch.Generator().manual_seed(seed)])
        assert (token.token_id, token.logprob) == (49_999, 0.0)
