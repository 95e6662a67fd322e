"""Keys and values that outlive their request: for the next turn of a conversation, and for equal prompts of a group."""

from collections import OrderedDict

import numpy

from learner.serving.embedded.attention import KeyValueCache

Ids = numpy.ndarray
"""Token ids, int32."""


def shared_prefix(first: Ids, second: Ids) -> int:
    """How many tokens two sequences begin with in common."""
    length = min(len(first), len(second))
    different = first[:length] != second[:length]
    return int(different.argmax()) if different.any() else length


class PromptCache:
    """Sequences and their keys and values, least recently used ones dropped beyond `max_tokens`."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: OrderedDict[int, tuple[Ids, KeyValueCache]] = OrderedDict()
        self._next_key = 0
        self.tokens = 0
        """Tokens held."""

    def longest(self, ids: Ids) -> tuple[int, KeyValueCache | None]:
        """The entry that shares the longest beginning with `ids`, and how many tokens that is."""
        best, key = 0, None
        for candidate, (known, _) in self._entries.items():
            if (length := shared_prefix(known, ids)) > best:
                best, key = length, candidate
        if key is None:
            return 0, None
        self._entries.move_to_end(key)
        return best, self._entries[key][1]

    def add(self, ids: Ids, cache: KeyValueCache) -> None:
        """Keeps a sequence whose `cache` holds exactly `ids`; what begins another one of them is not kept twice."""
        if not 0 < len(ids) <= self._max_tokens:
            return
        for key, (known, _) in list(self._entries.items()):
            if (length := shared_prefix(known, ids)) == len(ids):
                return
            if length == len(known):
                self._remove(key)
        self._entries[self._next_key] = (ids, cache)
        self._next_key += 1
        self.tokens += len(ids)
        while self.tokens > self._max_tokens:
            self._remove(next(iter(self._entries)))

    def clear(self) -> None:
        """Forgets everything: the weights have changed."""
        self._entries.clear()
        self.tokens = 0

    def _remove(self, key: int) -> None:
        ids, _ = self._entries.pop(key)
        self.tokens -= len(ids)
