"""From the bytes of a request to a sequence that can be scheduled, or a refusal in vLLM's words. Pure."""

import uuid

import msgspec

from learner.serving.embedded.scheduler import Sequence
from learner.serving.errors import RequestRefused
from learner.serving.protocol import MAX_LOGPROBS, REQUEST_ID_PREFIX, GenerateRequest, SamplingParams

_NEUTRAL = SamplingParams()
_UNSUPPORTED = ("n", "min_p", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "stop")


def parse(body: bytes) -> GenerateRequest:
    """The request in a body.

    Raises:
        RequestRefused: no JSON of this shape, or a field that the embedded engine does not know.
    """
    try:
        return msgspec.json.decode(body, type=GenerateRequest)
    except msgspec.DecodeError as error:
        raise RequestRefused(str(error)) from error


def to_sequence(
    request: GenerateRequest,
    *,
    model: str,
    context_tokens: int,
    vocabulary: int,
    stop_ids: frozenset[int],
    header_id: str | None = None,
) -> Sequence:
    """The request as a sequence, its limits worked out.

    Raises:
        RequestRefused: 404 for another model, 400 for everything that cannot be done.
    """
    if request.model not in (None, model):
        text = f"The model `{request.model}` does not exist. Valid aliases: {model}."
        raise RequestRefused(text, status=404, parameter="model")
    _check_sampling(request.sampling_params)
    if request.output_mode != "tokens":
        raise RequestRefused("the embedded engine answers tokens only", parameter="output_mode")
    _check_prompt(request.token_ids, context_tokens, vocabulary)
    params = request.sampling_params
    room = context_tokens - len(request.token_ids)
    own = frozenset() if params.ignore_eos else stop_ids
    name = header_id or request.request_id or uuid.uuid4().hex
    return Sequence(
        request_id=REQUEST_ID_PREFIX + name,
        prompt=request.token_ids,
        params=params,
        max_tokens=min(params.max_tokens or room, room),
        stop_ids=own | frozenset(params.stop_token_ids or ()),
    )


def _check_prompt(token_ids: list[int], context_tokens: int, vocabulary: int) -> None:
    count = len(token_ids)
    if not count:
        raise RequestRefused("token_ids is empty", parameter="token_ids")
    if count > context_tokens:
        raise RequestRefused(
            f"The decoder prompt (length {count}) is longer than the maximum model length of {context_tokens}."
        )
    if count == context_tokens:
        raise RequestRefused(
            f"The decoder prompt (length {count}) plus the number of requested output tokens (at least 1) is longer "
            f"than the maximum model length of {context_tokens}."
        )
    if min(token_ids) < 0 or max(token_ids) >= vocabulary:
        wrong = next(token for token in token_ids if not 0 <= token < vocabulary)
        raise RequestRefused(f"Token id {wrong} is out of vocabulary", parameter="token_ids")


def _check_sampling(params: SamplingParams) -> None:
    rules = {
        "max_tokens": (params.max_tokens is None or params.max_tokens >= 1, "must be at least 1"),
        "temperature": (0 <= params.temperature < float("inf"), "must be non-negative"),
        "top_p": (0 < params.top_p <= 1, "must be in (0, 1]"),
        "top_k": (params.top_k >= -1, "must be -1 or 0 (off), or at least 1"),
        "logprobs": (params.logprobs is None or 0 <= params.logprobs <= MAX_LOGPROBS, f"must be 0 to {MAX_LOGPROBS}"),
    }
    for name, (fits, rule) in rules.items():
        if not fits:
            raise RequestRefused(f"{name} {rule}, got {getattr(params, name)}.", parameter=name)
    for name in _UNSUPPORTED:
        value = getattr(params, name)
        if value and value != getattr(_NEUTRAL, name):
            raise RequestRefused(f"the embedded engine does not do {name}; leave it out", parameter=name)
