"""Draws one token for each row of logits. Pure, but for the generators that it moves on."""

from dataclasses import dataclass

import torch

from learner.serving.protocol import SamplingParams


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token, its log-probability in the distribution drawn from, and its rank (1: the likeliest)."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Sampled(Candidate):
    """The token drawn, and the likeliest ones where they were asked for."""

    top: tuple[Candidate, ...] = ()


def sample(logits: torch.Tensor, params: list[SamplingParams], generators: list[torch.Generator]) -> list[Sampled]:
    """One token a row of `logits` [rows, vocabulary]; row i by `params[i]`, its randomness from `generators[i]`.

    Log-probabilities are of the distribution after temperature, top-k and top-p, in that order.
    """
    logprobs = processed_logprobs(logits, params)
    chosen = logprobs.argmax(-1)
    random = [row for row, wanted in enumerate(params) if wanted.temperature > 0]
    if random:
        # Inverse of the cumulated distribution, in float64: 50,000 float32 additions would lose the tail.
        cumulated = logprobs[random].double().exp_().cumsum(-1)
        uniform = torch.cat([torch.rand(1, generator=generators[row], dtype=torch.float64) for row in random])
        drawn = torch.searchsorted(cumulated, (uniform * cumulated[:, -1])[:, None], right=True)[:, 0]
        chosen[random] = drawn.clamp_(max=logits.shape[1] - 1)
    picked = logprobs.gather(1, chosen[:, None])
    ranks = (logprobs >= picked).sum(-1)
    rows = zip(chosen.tolist(), picked[:, 0].tolist(), ranks.tolist(), strict=True)
    return [Sampled(*row, top=_top(logprobs[i], params[i].logprobs or 0)) for i, row in enumerate(rows)]


def processed_logprobs(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    """Log-probabilities that tokens are drawn from, [rows, vocabulary]; greedy rows are left at temperature 1."""
    temperatures = torch.tensor([[wanted.temperature or 1.0] for wanted in params])
    scaled = logits / temperatures
    for row, wanted in enumerate(params):
        if 0 < wanted.top_k < scaled.shape[1]:
            threshold = scaled[row].topk(wanted.top_k).values[-1]
            scaled[row].masked_fill_(scaled[row] < threshold, -torch.inf)
        if wanted.top_p < 1.0:
            _mask_below_nucleus(scaled[row], wanted.top_p)
    return torch.log_softmax(scaled, -1)


def _mask_below_nucleus(row: torch.Tensor, top_p: float) -> None:
    """Keeps the smallest set of likeliest tokens whose mass reaches `top_p`; in place."""
    ordered, order = row.sort(descending=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    row[order[before >= top_p]] = -torch.inf


def _top(logprobs: torch.Tensor, count: int) -> tuple[Candidate, ...]:
    if not count:
        return ()
    values, ids = logprobs.topk(count)
    pairs = zip(ids.tolist(), values.tolist(), strict=True)
    return tuple(Candidate(token, value, rank) for rank, (token, value) in enumerate(pairs, start=1))
