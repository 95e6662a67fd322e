"""The tiny model, batches sampled from it, and an independent forward pass by plain transformers."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from learner.rows import Row

VOCABULARY = 512


def reference(folder: Path) -> torch.nn.Module:
    """The model of a folder, in fp32, by transformers alone and with another attention than the learner's."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def token_logprobs(
    model: torch.nn.Module, tokens: Sequence[int] | np.ndarray, temperature: float = 1.0
) -> torch.Tensor:
    """log π(token i | tokens before i) of one sequence, unpadded and alone; 0 for the first."""
    ids = torch.tensor(list(tokens), dtype=torch.long)
    logits = model(ids.unsqueeze(0)).logits[0] / temperature
    taken = torch.log_softmax(logits[:-1], dim=-1).gather(-1, ids[1:].unsqueeze(-1)).squeeze(-1)
    return torch.cat([torch.zeros(1), taken])


def make_row(model: torch.nn.Module, seed: int, *, temperature: float = 1.0, noise: float = 0.0) -> Row:
    """Random ids, a second turn after a tool result, and the log-probabilities that the model gives them.

    `noise` is the largest error of the recorded log-probabilities: another engine, an older version.
    """
    rng = random.Random(seed)
    prompt, first, tool, second = rng.randint(1, 12), rng.randint(1, 6), rng.randint(0, 4), rng.randint(1, 5)
    mask = [0] * prompt + [1] * first + [0] * tool + [1] * second
    ids = [rng.randrange(VOCABULARY) for _ in mask]
    with torch.no_grad():
        exact = token_logprobs(model, ids, temperature).tolist()
    logprobs = [m * min(0.0, p + noise * rng.uniform(-1, 1)) for m, p in zip(mask, exact, strict=True)]
    return Row(np.array(ids, "<i4"), np.array(mask, np.uint8), np.array(logprobs, "<f4"), prompt)
