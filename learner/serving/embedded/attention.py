"""Attention over packed sequences: tokens of many requests in one row, keys and values of each in a cache of its own.

Linear layers see one matrix of all tokens; attention runs sequence by sequence on exactly its own length. So nothing
is padded, requests join and leave without a copy, and a prompt's piece travels beside single tokens of others.
It is hooked into transformers by name, see https://huggingface.co/docs/transformers/attention_interface.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import AttentionInterface

NAME = "forgestream_packed"


class KeyValueCache:
    """Keys and values of one sequence: `[layers, kv_heads, capacity, head_dim]`, the first `length` tokens filled."""

    __slots__ = ("keys", "length", "values")

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int, device: torch.device) -> None:
        shape = (layers, kv_heads, capacity, head_dim)
        self.keys = torch.empty(shape, dtype=torch.float32, device=device)
        self.values = torch.empty(shape, dtype=torch.float32, device=device)
        self.length = 0

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.keys.shape[2]

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens; by half more than there was, so that growing stays cheap."""
        if length > self.capacity:
            layers, kv_heads, capacity, head_dim = self.keys.shape
            grown = KeyValueCache(layers, kv_heads, max(length, capacity * 3 // 2), head_dim, self.keys.device)
            grown.copy_prefix(self, self.length)
            self.keys, self.values = grown.keys, grown.values

    def copy_prefix(self, other: "KeyValueCache", length: int) -> None:
        """Takes over the first `length` tokens of another sequence."""
        self.keys[:, :, :length] = other.keys[:, :, :length]
        self.values[:, :, :length] = other.values[:, :, :length]
        self.length = length


@dataclass(frozen=True, slots=True)
class Span:
    """A sequence's place in the packed row: `count` tokens from `start`; they follow `cache.length` known ones."""

    start: int
    count: int
    cache: KeyValueCache


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    spans: list[Span],
    scaling: float | None = None,
    **_unused: object,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: `query` [1, heads, tokens, dim], `key` and `value` [1, kv_heads, tokens, dim].

    Writes the new keys and values into the caches; their `length` is moved by the caller after the last layer.

    Returns:
        [1, tokens, heads, dim].
    """
    _, heads, tokens, dim = query.shape
    out = query.new_empty((tokens, heads, dim))
    layer: int = module.layer_idx  # pyright: ignore[reportAssignmentType]
    for span in spans:
        here = slice(span.start, span.start + span.count)
        known, length = span.cache.length, span.cache.length + span.count
        keys, values = span.cache.keys[layer], span.cache.values[layer]
        keys[:, known:length] = key[0, :, here]
        values[:, known:length] = value[0, :, here]
        out[here] = _attend(query[0, :, here], keys[:, :length], values[:, :length], known, scaling)
    return out[None], None


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, known: int, scaling: float | None
) -> torch.Tensor:
    """[heads, new, dim] against [kv_heads, known + new, dim] → [new, heads, dim]."""
    heads, new, dim = query.shape
    kv_heads, length, _ = keys.shape
    group = heads // kv_heads
    if new == 1:  # the query heads of a group stand where query tokens would: no mask, no repetition of keys
        grouped = query.reshape(1, kv_heads, group, dim)
        seen = functional.scaled_dot_product_attention(grouped, keys[None], values[None], scale=scaling)
        return seen.reshape(1, heads, dim)
    grouped = query.reshape(kv_heads, group, new, dim)
    shape = (kv_heads, group, length, dim)
    causal = known == 0
    mask = None if causal else torch.ones(new, length, dtype=torch.bool, device=query.device).tril(known)
    seen = functional.scaled_dot_product_attention(
        grouped,
        keys[:, None].expand(shape),
        values[:, None].expand(shape),
        attn_mask=mask,
        is_causal=causal,
        scale=scaling,
    )
    return seen.reshape(heads, new, dim).transpose(0, 1)


def register() -> None:
    """Makes the name known to transformers; models loaded under it get no mask."""
    AttentionInterface.register(NAME, packed_attention)
