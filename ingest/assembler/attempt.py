"""What is kept in memory of one attempt of an open rollout."""

from dataclasses import dataclass, field

import msgspec

from ingest.assembler.tree import ID_BYTES
from schemas import Completion

RECORD_BYTES = 1_000
"""About what a kept completion takes in memory beside its tokens."""


@dataclass(slots=True)
class Recorded:
    """One completion of the attempt: its place in the log, what it adds to the sums, and its tokens."""

    offset: int
    prompt_tokens: int
    completion_tokens: int
    engine_us: int
    completion: Completion | None
    """Without its texts, which are the larger part of a record; None when the attempt is too large."""


@dataclass(slots=True)
class Attempt:
    """The completions of one attempt, by id, in log order."""

    recorded: dict[str, Recorded] = field(default_factory=dict)
    size_bytes: int = 0
    """About what it takes in memory."""
    too_large: bool = False
    """Its tokens passed the limit and were dropped; only the sums go on."""

    def add(self, offset: int, completion: Completion, max_bytes: int) -> bool:
        """Take a completion in; False when its id was there already (a spool that was drained twice)."""
        if completion.completion_id in self.recorded:
            return False
        tokens = (completion.prompt_token_ids, completion.completion_token_ids, completion.rollout_logprobs)
        if not self.too_large:
            self.size_bytes += RECORD_BYTES + sum(map(len, tokens))
        self.recorded[completion.completion_id] = Recorded(
            offset=offset,
            prompt_tokens=completion.prompt_token_count,
            completion_tokens=len(completion.completion_token_ids) // ID_BYTES,
            engine_us=_engine_us(completion),
            completion=None if self.too_large else _slim(completion),
        )
        if self.size_bytes > max_bytes:
            self._drop_tokens()
        return True

    def below(self, end: int) -> "Attempt":
        """The part of it that lies below an offset."""
        if all(r.offset < end for r in self.recorded.values()):
            return self
        return Attempt({name: r for name, r in self.recorded.items() if r.offset < end}, 0, self.too_large)

    def _drop_tokens(self) -> None:
        self.too_large, self.size_bytes = True, 0
        for recorded in self.recorded.values():
            recorded.completion = None


def _slim(completion: Completion) -> Completion:
    return msgspec.structs.replace(completion, request_delta="[]", response="{}", sampling_requested="{}", error=None)


def _engine_us(completion: Completion) -> int:
    dispatched, last = completion.timings.dispatched_at_us, completion.timings.last_token_at_us
    return 0 if dispatched is None or last is None else max(0, last - dispatched)
