"""The cache of keys and values: longest beginnings, bounds, order of dropping."""

import numpy
from hypothesis import given
from hypothesis import strategies as st

from learner.serving.embedded.attention import KeyValueCache
from learner.serving.embedded.prompts import PromptCache, shared_prefix

sequences = st.lists(st.integers(0, 2), max_size=12)


def ids(*tokens: int) -> numpy.ndarray:
    return numpy.asarray(tokens, dtype=numpy.int32)


def slot() -> KeyValueCache:
    import torch

    return KeyValueCache(1, 1, 1, 1, torch.device("cpu"))


@given(sequences, sequences)
def test_shared_prefix_counts_equal_tokens_from_the_start(first: list[int], second: list[int]) -> None:
    expected = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        expected += 1
    assert shared_prefix(ids(*first), ids(*second)) == expected


def test_the_longest_beginning_is_found() -> None:
    cache = PromptCache(100)
    short, long = slot(), slot()
    cache.add(ids(1, 2, 9), short)
    cache.add(ids(1, 2, 3, 4), long)
    assert cache.longest(ids(1, 2, 3, 5)) == (3, long)
    assert cache.longest(ids(1, 2, 9)) == (3, short)
    assert cache.longest(ids(7)) == (0, None)
    assert cache.tokens == 7


def test_what_begins_another_is_not_kept_twice() -> None:
    cache = PromptCache(100)
    turn, conversation = slot(), slot()
    cache.add(ids(1, 2), turn)
    cache.add(ids(1, 2, 3), conversation)
    assert cache.tokens == 3
    assert cache.longest(ids(1, 2)) == (2, conversation)
    cache.add(ids(1, 2), slot())
    assert cache.tokens == 3


def test_the_least_recently_used_goes_first() -> None:
    cache = PromptCache(6)
    first, second, third = slot(), slot(), slot()
    cache.add(ids(1, 1), first)
    cache.add(ids(2, 2), second)
    cache.add(ids(3, 3), third)
    assert cache.longest(ids(1, 1)) == (2, first)
    cache.add(ids(4, 4), slot())
    assert cache.longest(ids(2, 2)) == (0, None)
    assert cache.longest(ids(1, 1)) == (2, first)
    assert cache.tokens == 6


def test_bounds() -> None:
    cache = PromptCache(3)
    cache.add(ids(1, 2, 3, 4), slot())
    cache.add(ids(), slot())
    assert cache.tokens == 0
    off = PromptCache(0)
    off.add(ids(1), slot())
    assert off.longest(ids(1)) == (0, None)
    cache.add(ids(1, 2), slot())
    cache.clear()
    assert (cache.tokens, cache.longest(ids(1, 2))) == (0, (0, None))
