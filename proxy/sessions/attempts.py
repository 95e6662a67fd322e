"""The rollout attempts that talk to this proxy: counters, chains, calls in flight; bounded in memory and time."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ingest.bearer import Bearer
from proxy.conversation import Answer
from proxy.errors import Problem, RequestError
from proxy.sessions.chains import Chains
from schemas import Limits

_REMEMBERED_ANSWERS = 4  # an SDK repeats its last call, not one of long ago
_REMEMBERED_SEALS = 100_000

AttemptKey = tuple[str, int]
"""rollout_id and attempt."""
Call = TypeVar("Call")


@dataclass(slots=True)
class Attempt(Generic[Call]):
    """What one rollout attempt has done so far, as this process saw it."""

    key: AttemptKey
    chains: Chains = field(default_factory=Chains)
    calls: int = 0
    """Calls that were given to an engine."""
    tokens: int = 0
    """Prompt and completion tokens of those calls."""
    received: int = 0
    """Calls received, of any outcome: the next `call_index`."""
    refused: set[Problem] = field(default_factory=set)
    """Limits of which a refusal is on record already."""
    in_flight: dict[str, Call] = field(default_factory=dict)
    """Calls being answered, by the digest of their body."""
    answers: OrderedDict[str, Answer] = field(default_factory=OrderedDict)
    """The last answers, by the digest of the body."""
    failures: OrderedDict[str, str] = field(default_factory=OrderedDict)
    """The last calls that came to nothing: digest of the body → completion_id."""
    used_at_s: float = 0.0

    def next_index(self) -> int:
        """Numbers the calls in the order in which they came."""
        self.received += 1
        return self.received - 1

    def check_calls(self, limits: Limits) -> None:
        """Raises RequestError when all calls are used."""
        if limits.calls and self.calls >= limits.calls:
            raise RequestError(
                Problem.CALL_LIMIT, f"this rollout may make {limits.calls} model calls and has made them"
            )

    def tokens_left(self, limits: Limits, prompt_tokens: int) -> int | None:
        """Completion tokens that the attempt may still use after a prompt; None: no limit.

        Raises:
            RequestError: none is left.
        """
        if not limits.tokens:
            return None
        left = limits.tokens - self.tokens - prompt_tokens
        if left <= 0:
            raise RequestError(
                Problem.TOKEN_LIMIT,
                f"this rollout may use {limits.tokens} tokens, has used {self.tokens}; the prompt has {prompt_tokens}",
            )
        return left

    def forget(self, digest: str, call: Call) -> None:
        """A call is no longer one that repeats may join."""
        if self.in_flight.get(digest) is call:
            del self.in_flight[digest]

    def remember(self, digest: str, answer: Answer) -> None:
        """Keep an answer for a repeat of the same call."""
        self.answers[digest] = answer
        self.failures.pop(digest, None)
        _trim(self.answers)

    def remember_failure(self, digest: str, completion_id: str) -> None:
        """Keep the name of a call that came to nothing, for the `retry_of` of its repeat."""
        self.failures[digest] = completion_id
        _trim(self.failures)


def _trim(memory: OrderedDict) -> None:
    if len(memory) > _REMEMBERED_ANSWERS:
        memory.popitem(last=False)


class Attempts(Generic[Call]):
    """All attempts. Chains are dropped when they outgrow the memory bound, attempts when they end or fall silent."""

    def __init__(self, *, idle_s: float, chain_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s = idle_s
        self._chain_bytes = chain_bytes
        self._clock = clock
        self._attempts: OrderedDict[AttemptKey, Attempt[Call]] = OrderedDict()
        self._sealed: OrderedDict[AttemptKey, None] = OrderedDict()
        self.size_bytes = 0
        """Memory of all chains together."""

    def __len__(self) -> int:
        return len(self._attempts)

    def open(self, bearer: Bearer) -> Attempt[Call]:
        """The attempt that a bearer speaks for.

        Raises:
            RequestError: its rollout has ended.
        """
        key = (bearer.rollout_id, bearer.attempt)
        if key in self._sealed:
            raise RequestError(
                Problem.SEALED,
                f"rollout {bearer.rollout_id} (attempt {bearer.attempt}) has ended: it takes no more calls",
            )
        attempt = self._attempts.get(key)
        if attempt is None:
            attempt = self._attempts[key] = Attempt(key)
        self._attempts.move_to_end(key)
        attempt.used_at_s = self._clock()
        return attempt

    def grown(self, attempt: Attempt[Call], by_bytes: int) -> None:
        """An attempt's chains have grown: keep all of them within the bound, the longest unused go first."""
        if self._attempts.get(attempt.key) is not attempt:
            return  # it ended meanwhile
        self.size_bytes += by_bytes
        for other in self._attempts.values():
            if self.size_bytes <= self._chain_bytes:
                return
            if other is not attempt:
                self.size_bytes -= other.chains.size_bytes
                other.chains.clear()

    def seal(self, rollout_id: str, number: int) -> None:
        """A rollout attempt has ended: forget it, and take no more calls of it."""
        key = (rollout_id, number)
        self._drop(key)
        self._sealed[key] = None
        if len(self._sealed) > _REMEMBERED_SEALS:
            self._sealed.popitem(last=False)

    def drop_idle(self) -> int:
        """Forget attempts that were silent for too long and have nothing in flight. Returns how many."""
        before = self._clock() - self._idle_s
        idle = [key for key, a in self._attempts.items() if a.used_at_s < before and not a.in_flight]
        for key in idle:
            self._drop(key)
        return len(idle)

    def _drop(self, key: AttemptKey) -> None:
        if (attempt := self._attempts.pop(key, None)) is not None:
            self.size_bytes -= attempt.chains.size_bytes
