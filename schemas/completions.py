"""One recorded model exchange: completions.v1."""

from typing import Annotated

from schemas.record import Record, WireEnum, doc
from schemas.tasks import Sampling


class CallKind(WireEnum):
    """What a model call was for."""

    UNKNOWN = "UNKNOWN"
    AGENT = "agent"
    SUBAGENT = "subagent"
    AUXILIARY = "auxiliary"
    COMPACTION = "compaction"
    COUNT = "count"


class CompletionStatus(WireEnum):
    """How the exchange ended. Only `delivered` is trained."""

    UNKNOWN = "UNKNOWN"
    DELIVERED = "delivered"
    ABORTED = "aborted"
    REPLAYED = "replayed"
    FAILED = "failed"


class FinishReason(WireEnum):
    """Why the engine stopped sampling."""

    UNKNOWN = "UNKNOWN"
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    ABORT = "abort"
    ERROR = "error"


class VersionRun(Record, frozen=True, kw_only=True):
    """A stretch of tokens that one policy version sampled."""

    version: Annotated[int, doc("Policy version.")] = 0
    start: Annotated[int, doc("First token of the stretch.")] = 0
    end: Annotated[int, doc("One past its last token.")] = 0


class Usage(Record, frozen=True, kw_only=True):
    """Token counts as told to the harness."""

    prompt_tokens: Annotated[int, doc("Tokens of the prompt.")] = 0
    completion_tokens: Annotated[int, doc("Tokens sampled.")] = 0
    cached_tokens: Annotated[int, doc("Prompt tokens that the engine found in its cache.")] = 0


class CompletionTimings(Record, frozen=True, kw_only=True):
    """When each phase of the exchange was reached, epoch µs."""

    received_at_us: Annotated[int, doc("The request was read.")] = 0
    dispatched_at_us: Annotated[int | None, doc("It was sent to the engine.")] = None
    first_token_at_us: Annotated[int | None, doc("The engine's first token arrived.")] = None
    last_token_at_us: Annotated[int | None, doc("The engine's last token arrived.")] = None


class Completion(Record, frozen=True, kw_only=True):
    """One model exchange: what was new in the request, and exactly what the engine sampled.

    The whole prompt is the parent's prompt and completion followed by `prompt_token_ids`; a root has no parent.
    """

    completion_id: Annotated[str, doc("Unique name of the exchange.")] = ""
    rollout_id: Annotated[str, doc("The rollout; the key of the record.")] = ""
    attempt: Annotated[int, doc("The rollout's attempt.")] = 1
    call_index: Annotated[int, doc("Order in which one proxy process received the attempt's calls, from 0.")] = 0
    parent_id: Annotated[str | None, doc("The completion that this one continues; null for a root.")] = None
    call_kind: Annotated[CallKind, doc("What the call was for.")] = CallKind.UNKNOWN
    harness_session: Annotated[str | None, doc("The harness's own session id.")] = None
    harness_thread: Annotated[str | None, doc("The harness's own thread id.")] = None
    harness_agent: Annotated[str | None, doc("The harness's own sub-agent id.")] = None
    dialect: Annotated[str, doc("Wire format of the request: openai_chat, …")] = ""
    model: Annotated[str, doc("Model name that the harness asked for.")] = ""
    policy_id: Annotated[str, doc("The policy that answered.")] = ""
    policy_version_min: Annotated[int | None, doc("Oldest policy version among the sampled tokens.")] = None
    policy_version_max: Annotated[int | None, doc("Newest policy version among the sampled tokens.")] = None
    policy_version_runs: Annotated[list[VersionRun], doc("Which version sampled which tokens.")] = []
    request_delta: Annotated[str, doc("JSON array: messages that are new since the parent.")] = "[]"
    system_blob: Annotated[str | None, doc("sha256 of the system prompt on blobs.v1.")] = None
    tools_blob: Annotated[str | None, doc("sha256 of the tool list on blobs.v1.")] = None
    sampling: Annotated[Sampling, doc("Sampling as applied.")] = Sampling()
    sampling_requested: Annotated[str, doc("JSON object: sampling as the harness asked for it.")] = "{}"
    prompt_token_count: Annotated[int, doc("Tokens of the whole prompt.")] = 0
    prompt_token_ids: Annotated[bytes, doc("int32 LE: prompt tokens that are new since the parent.")] = b""
    completion_token_ids: Annotated[bytes, doc("int32 LE: tokens as sampled, the stop token included.")] = b""
    rollout_logprobs: Annotated[bytes, doc("float32 LE: log-probability of each sampled token.")] = b""
    response: Annotated[str, doc("JSON object: the assistant message as it was answered.")] = "{}"
    finish_reason: Annotated[FinishReason, doc("Why sampling stopped.")] = FinishReason.UNKNOWN
    usage: Annotated[Usage, doc("Token counts as told to the harness.")] = Usage()
    streamed: Annotated[bool, doc("Whether the answer was streamed.")] = False
    status: Annotated[CompletionStatus, doc("How the exchange ended.")] = CompletionStatus.UNKNOWN
    retry_of: Annotated[str | None, doc("The completion that this one repeats.")] = None
    error: Annotated[str | None, doc("What went wrong, in one line.")] = None
    template_digest: Annotated[str, doc("sha256 of the chat template that rendered it.")] = ""
    request_digest: Annotated[str, doc("sha256 of the request's body.")] = ""
    engine: Annotated[str, doc("Address of the engine that sampled it.")] = ""
    timings: Annotated[CompletionTimings, doc("When each phase was reached.")] = CompletionTimings()
