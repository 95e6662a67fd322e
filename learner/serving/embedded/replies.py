"""What the embedded engine answers, as plain JSON values; the shapes are vLLM's. Pure."""

import time
from collections.abc import Iterable
from typing import Any

from learner.serving.embedded.sampler import Candidate, Sampled
from learner.serving.embedded.scheduler import Sequence


def whole(
    sequence: Sequence, model: str, tokens: list[Sampled], finish: str, stop_reason: int | None
) -> dict[str, Any]:
    """The answer to a request that is not streamed."""
    return {
        "request_id": sequence.request_id,
        "model": model,
        "created": int(time.time()),
        "usage": usage(sequence),
        "output_mode": "tokens",
        "choices": [_choice(sequence, tokens, finish, stop_reason)],
    }


def chunk(sequence: Sequence, tokens: list[Sampled], finish: str | None, stop_reason: int | None) -> dict[str, Any]:
    """One event of a stream."""
    return {
        "request_id": sequence.request_id,
        "usage": None,
        "output_mode": "tokens",
        "choices": [_choice(sequence, tokens, finish, stop_reason)],
    }


def usage_chunk(sequence: Sequence) -> dict[str, Any]:
    """The event after the last token, where it was asked for."""
    return {"request_id": sequence.request_id, "usage": usage(sequence), "output_mode": "tokens", "choices": []}


def usage(sequence: Sequence) -> dict[str, Any]:
    """Token counts of a request."""
    return {
        "prompt_tokens": len(sequence.prompt),
        "completion_tokens": len(sequence.sampled),
        "total_tokens": sequence.length,
        "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
    }


def error(message: str, status: int, parameter: str | None = None) -> dict[str, Any]:
    """The body of a refusal."""
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(status, "InternalServerError")
    return {"error": {"message": message, "type": kind, "param": parameter, "code": status}}


def weight_versions(sequence: Sequence) -> list[dict[str, Any]]:
    """Which weights sampled which stretch of the completion."""
    ends = [start for _, start in sequence.versions[1:]] + [len(sequence.sampled)]
    return [
        {"version": version, "start": start, "end": end}
        for (version, start), end in zip(sequence.versions, ends, strict=True)
    ]


def _choice(sequence: Sequence, tokens: list[Sampled], finish: str | None, stop_reason: int | None) -> dict[str, Any]:
    wanted = sequence.params.logprobs
    return {
        "index": 0,
        "finish_reason": finish,
        "stop_reason": stop_reason,
        "token_ids": [token.token_id for token in tokens],
        "weight_versions": weight_versions(sequence) if finish else None,
        "logprobs": None if wanted is None else {"content": [_entry(token, wanted) for token in tokens]},
    }


def _entry(token: Sampled, wanted: int) -> dict[str, Any]:
    others = (candidate for candidate in token.top if candidate.token_id != token.token_id)
    return {**_candidate(token), "top_logprobs": _candidates([token, *others], max(wanted, 1))}


def _candidates(candidates: Iterable[Candidate], count: int) -> list[dict[str, Any]]:
    return [_candidate(candidate) for candidate in candidates][:count]


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {"token_id": candidate.token_id, "logprob": candidate.logprob, "rank": candidate.rank}
