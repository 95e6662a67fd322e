"""Who takes part in the next step. Continuous batching: requests join and leave between any two steps.

There is no separate phase for prompts. A sequence is prompt + what was sampled; in each step it brings the tokens
that its cache does not hold yet, and when none are left out, one token is sampled. A fresh prompt, the second half of
a long one, a single new token, and a sequence whose cache was dropped with the old weights are all the same case.

All of it belongs to one thread.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from learner.serving.embedded.attention import KeyValueCache
from learner.serving.embedded.model import PackedModel
from learner.serving.embedded.prompts import PromptCache, shared_prefix
from learner.serving.embedded.sampler import Sampled, sample
from learner.serving.protocol import SamplingParams

_WORTH_WAITING = 16
"""Tokens in common with a prompt being computed, from which a request waits for them instead of computing them too."""

_FIRST_ROOM = 64
"""New tokens that a fresh cache has room for."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One request on its way. `prompt` is shorter than the context; `params.max_tokens` is set and fits."""

    request_id: str
    prompt: list[int]
    params: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int]
    """End tokens of the model and of the request."""
    owner: Any = None
    """Whatever the caller wants to find again with each delta."""
    sampled: list[int] = field(default_factory=list)
    versions: list[tuple[str, int]] = field(default_factory=list)
    """Weight version and the index of the first token that it sampled."""
    cache: KeyValueCache | None = None
    mixed: bool = False
    """Whether the cache holds keys of more than one weight version: then nobody else may use it."""
    cached_tokens: int = 0
    """Prompt tokens that were found in a cache when the request was admitted first."""
    generator: torch.Generator = field(default_factory=torch.Generator)
    ids: numpy.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.ids = numpy.asarray(self.prompt, dtype=numpy.int32)
        if self.params.seed is None:
            self.generator.seed()
        else:
            self.generator.manual_seed(self.params.seed % (1 << 63))

    @property
    def length(self) -> int:
        """Tokens of prompt and completion so far."""
        return len(self.prompt) + len(self.sampled)

    def pending(self) -> list[int]:
        """Tokens that the cache does not hold yet; never empty while the sequence runs."""
        known = self.cache.length if self.cache else 0
        if known >= len(self.prompt):
            return self.sampled[known - len(self.prompt) :]
        return self.prompt[known:] + self.sampled


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step, or an abort, brought to one sequence."""

    sequence: Sequence
    new: Sampled | None = None
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prompt_tokens: int = 0
    """Prompt tokens of admitted requests, cached ones included."""
    cached_tokens: int = 0
    """Of those, found in a cache."""
    computed_tokens: int = 0
    """Tokens put through the model: what is not cached, each sampled one, and what weight updates made again."""
    generation_tokens: int = 0
    """Tokens sampled."""
    steps: int = 0


class Scheduler:
    """Waiting and running requests of one model."""

    def __init__(
        self, model: PackedModel, version: str, *, max_running: int, step_tokens: int, prompt_cache_tokens: int
    ) -> None:
        self.version = version
        """Name of the weights in use."""
        self.counters = Counters()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._model = model
        self._max_running = max_running
        self._step_tokens = max(step_tokens, max_running)  # a step always has room for one token of each
        self._prompts = PromptCache(prompt_cache_tokens)

    def add(self, sequence: Sequence) -> None:
        """Puts a request in the queue."""
        self.waiting.append(sequence)

    def abort(self, chosen: Callable[[Sequence], bool]) -> list[Delta]:
        """Ends the requests that are chosen."""
        ended = [sequence for sequence in (*self.running, *self.waiting) if chosen(sequence)]
        gone = {id(sequence) for sequence in ended}
        self.running = [sequence for sequence in self.running if id(sequence) not in gone]
        self.waiting = deque(sequence for sequence in self.waiting if id(sequence) not in gone)
        return [Delta(sequence, finish_reason="abort") for sequence in ended]

    def drop_caches(self, *, running: bool) -> None:
        """After new weights: no old key is used by a new request, nor, if `running`, by those under way."""
        self._prompts.clear()
        if not running:
            for sequence in self.running:
                sequence.mixed = True
            return
        for sequence in self.running:
            sequence.cache, sequence.mixed = None, False
        # Through admission again: what they have in common is then computed once.
        self.waiting.extendleft(reversed(self.running))
        self.running = []

    def step(self) -> list[Delta]:
        """Admits, computes one step, samples; empty when nothing waits or runs."""
        self._admit()
        batch = self._batch()
        if not batch:
            return []
        logits = self._model.step([(tokens, cache) for _, tokens, cache in batch])
        self.counters.steps += 1
        self.counters.computed_tokens += sum(len(tokens) for _, tokens, _ in batch)
        complete = [row for row, (s, _, cache) in enumerate(batch) if cache.length == s.length]
        if not complete:
            return []
        sequences = [batch[row][0] for row in complete]
        drawn = sample(logits[complete], [s.params for s in sequences], [s.generator for s in sequences])
        return [self._take(sequence, token) for sequence, token in zip(sequences, drawn, strict=True)]

    def _admit(self) -> None:
        deferred: list[Sequence] = []
        while self.waiting and len(self.running) < self._max_running:
            sequence = self.waiting.popleft()
            known, source = self._longest_known(sequence)
            if self._in_work(sequence) >= known + _WORTH_WAITING:
                deferred.append(sequence)
                continue
            self._start(sequence, known, source)
        self.waiting.extendleft(reversed(deferred))

    def _start(self, sequence: Sequence, known: int, source: KeyValueCache | None) -> None:
        # Most completions end long before `max_tokens`.
        sequence.cache = self._model.new_cache(sequence.length + min(sequence.max_tokens, _FIRST_ROOM))
        if source is not None:
            sequence.cache.copy_prefix(source, known)
        if not sequence.sampled:
            sequence.cached_tokens = known
            self.counters.prompt_tokens += len(sequence.prompt)
            self.counters.cached_tokens += known
        self.running.append(sequence)

    def _longest_known(self, sequence: Sequence) -> tuple[int, KeyValueCache | None]:
        """The longest beginning of the prompt that is computed already, the last token excepted."""
        wanted = sequence.ids[:-1]
        best, source = self._prompts.longest(wanted)
        for other in self.running:
            if other.cache is None or other.mixed:
                continue
            length = min(shared_prefix(other.ids, wanted), other.cache.length)
            if length > best:
                best, source = length, other.cache
        return best, source

    def _in_work(self, sequence: Sequence) -> int:
        """The longest beginning of the prompt that a running request is about to have computed."""
        unfinished = (s for s in self.running if s.cache and not s.mixed and s.cache.length < len(s.prompt))
        return max((shared_prefix(other.ids, sequence.ids[:-1]) for other in unfinished), default=0)

    def _batch(self) -> list[tuple[Sequence, list[int], KeyValueCache]]:
        """Each sequence with the tokens that it brings: single tokens always, longer ones as far as there is room."""
        room = self._step_tokens
        batch: list[tuple[Sequence, list[int], KeyValueCache]] = []
        brought = [(sequence, sequence.pending(), sequence.cache) for sequence in self.running]
        for sequence, tokens, cache in sorted(brought, key=lambda item: len(item[1]) > 1):
            if room and cache is not None:
                part = tokens[:room]
                room -= len(part)
                batch.append((sequence, part, cache))
        return batch

    def _take(self, sequence: Sequence, token: Sampled) -> Delta:
        if not sequence.versions or sequence.versions[-1][0] != self.version:
            sequence.versions.append((self.version, len(sequence.sampled)))
        sequence.sampled.append(token.token_id)
        self.counters.generation_tokens += 1
        if token.token_id in sequence.stop_ids:
            own = token.token_id in self._model.stop_ids and not sequence.params.ignore_eos
            return self._finish(sequence, token, "stop", None if own else token.token_id)
        if len(sequence.sampled) >= sequence.max_tokens:
            return self._finish(sequence, token, "length", None)
        return Delta(sequence, token)

    def _finish(self, sequence: Sequence, token: Sampled, reason: str, stop_reason: int | None) -> Delta:
        self.running.remove(sequence)
        if sequence.cache is not None and not sequence.mixed:
            # The last token was sampled but never computed.
            held = numpy.concatenate([sequence.ids, numpy.asarray(sequence.sampled[:-1], dtype=numpy.int32)])
            self._prompts.add(held, sequence.cache)
        sequence.cache = None
        return Delta(sequence, token, reason, stop_reason)
