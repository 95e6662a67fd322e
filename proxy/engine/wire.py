"""vLLM's token API on the wire: requests, stream chunks, and the events of a stream.

Source: vLLM 0.32, entrypoints/scale_out/token_in_token_out/protocol.py.
"""

from collections.abc import Iterator, Sequence

import msgspec

from proxy.errors import EngineTrouble

GENERATE = "/inference/v1/generate"
ABORT = "/inference/v1/abort_requests"
_SERVER_PREFIX = "generate-tokens-"  # what vLLM puts before a request's id, and wants to see again in an abort
_DONE = b"[DONE]"
_MAX_EVENT_BYTES = 64 * 2**20


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an engine draws tokens. `logprobs=1`: with the log-probability of each sampled token."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop_token_ids: Sequence[int]
    logprobs: int
    seed: int | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream ends with."""

    include_usage: bool = True


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for tokens."""

    model: str
    request_id: str
    token_ids: Sequence[int]
    sampling_params: SamplingParams
    stream: bool = True
    stream_options: StreamOptions = StreamOptions()


class TokenLogprob(msgspec.Struct):
    """A sampled token and its log-probability."""

    logprob: float
    token_id: int | None = None


class Logprobs(msgspec.Struct):
    """One entry a sampled token."""

    content: list[TokenLogprob] | None = None


class VersionSpan(msgspec.Struct):
    """Output tokens [start, end) were sampled by the weights with this label."""

    version: str
    start: int
    end: int


class Choice(msgspec.Struct):
    """New tokens of the one sequence that was asked for."""

    token_ids: list[int] | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[VersionSpan] | None = None
    """vLLM: on the last chunk only, for the whole output. An engine may send it with every chunk, up to there."""


class PromptTokensDetails(msgspec.Struct):
    """Where prompt tokens came from."""

    cached_tokens: int | None = None


class EngineUsage(msgspec.Struct):
    """Token counts as the engine has them."""

    prompt_tokens_details: PromptTokensDetails | None = None


class EngineErrorInfo(msgspec.Struct):
    """An error as vLLM words it."""

    message: str = ""
    code: int | str | None = None


class Chunk(msgspec.Struct):
    """One event of the stream."""

    choices: list[Choice] = []
    usage: EngineUsage | None = None
    error: EngineErrorInfo | None = None


class ErrorBody(msgspec.Struct):
    """The body of a response that is no stream."""

    error: EngineErrorInfo | str | None = None
    detail: str | None = None


encode_request = msgspec.json.Encoder().encode
_decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode_error = msgspec.json.Decoder(ErrorBody).decode


def abort_body(request_id: str) -> bytes:
    """The body of an abort, under either name that the engine may know the request by."""
    return encode_request({"request_ids": [request_id, _SERVER_PREFIX + request_id]})


def error_text(body: bytes) -> str:
    """What an engine's error body says, in one line."""
    try:
        answer = _decode_error(body)
    except (msgspec.DecodeError, UnicodeError):
        return " ".join(body[:300].decode("utf-8", "replace").split())
    said = answer.error.message if isinstance(answer.error, EngineErrorInfo) else answer.error
    return " ".join((said or answer.detail or "no reason given").split())


class EventStream:
    """Bytes of a `text/event-stream` to chunks. Only `data:` lines count, as vLLM sends no others."""

    def __init__(self) -> None:
        self._rest = b""
        self.done = False
        """`[DONE]` was seen."""

    def feed(self, data: bytes) -> Iterator[Chunk]:
        """The chunks that are whole now.

        Raises:
            EngineTrouble: not what the token API sends.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_EVENT_BYTES:
            raise EngineTrouble("the engine sends an event without an end")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            payload = line[5:].strip()
            if payload == _DONE:
                self.done = True
                return
            try:
                yield _decode_chunk(payload)
            except (msgspec.DecodeError, UnicodeError) as error:
                raise EngineTrouble(f"the engine sends what is no chunk of tokens: {error}") from error
