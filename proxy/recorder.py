"""Completions to the log: what a record says, and when it is certain that it is there."""

import asyncio
import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ingest.bearer import Bearer
from ingest.kafka.producer import RecordProducer
from proxy.conversation import Answer, Conversation, Message, ModelRequest
from proxy.engine.sampled import Sampled
from proxy.sessions.chains import Match, Node
from schemas import (
    Blob,
    CallKind,
    Completion,
    CompletionStatus,
    CompletionTimings,
    FinishReason,
    Sampling,
    Usage,
    VersionRun,
)
from schemas.arrays import pack_floats, pack_ids
from schemas.topics import BLOBS, COMPLETIONS

_KNOWN_BLOBS = 10_000

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Call:
    """One model call as it came in."""

    bearer: Bearer
    dialect: str
    request: ModelRequest
    digest: str
    """sha256 of the body."""
    completion_id: str
    call_index: int
    received_at_us: int
    retry_of: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a call asks the engine with."""

    ids: list[int]
    """The whole prompt."""
    new_ids: array
    """int32: what is new since the parent."""
    match: Match
    parent: Node | None
    first_new: int
    """Index of the first message that is new since the parent."""
    system_blob: str | None
    tools_blob: str | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended."""

    status: CompletionStatus
    answer: Answer | None = None
    runs: tuple[VersionRun, ...] = ()
    error: str | None = None
    finish: FinishReason = FinishReason.UNKNOWN


def completion_record(
    call: Call, outcome: Outcome, *, prompt: Prompt | None, sampling: Sampling, sampled: Sampled, template_digest: str
) -> Completion:
    """The record of a call."""
    request = call.request
    return Completion(
        completion_id=call.completion_id,
        rollout_id=call.bearer.rollout_id,
        attempt=call.bearer.attempt,
        call_index=call.call_index,
        parent_id=prompt.parent.completion_id if prompt and prompt.parent else None,
        call_kind=CallKind.AGENT,
        dialect=call.dialect,
        model=request.model,
        policy_id=call.bearer.policy_id,
        policy_version_min=min((run.version for run in outcome.runs), default=None),
        policy_version_max=max((run.version for run in outcome.runs), default=None),
        policy_version_runs=list(outcome.runs),
        request_delta=_delta(request.conversation, prompt),
        system_blob=prompt.system_blob if prompt else None,
        tools_blob=prompt.tools_blob if prompt else None,
        sampling=sampling,
        sampling_requested=request.sampling_requested,
        prompt_token_count=len(prompt.ids) if prompt else 0,
        prompt_token_ids=pack_ids(prompt.new_ids) if prompt else b"",
        completion_token_ids=pack_ids(sampled.ids),
        rollout_logprobs=pack_floats(sampled.logprobs),
        response=_response(outcome.answer),
        finish_reason=outcome.finish,
        usage=_usage(outcome.answer),
        streamed=request.stream,
        status=outcome.status,
        retry_of=call.retry_of,
        error=outcome.error,
        template_digest=template_digest,
        request_digest=call.digest,
        engine=sampled.engine,
        timings=CompletionTimings(
            received_at_us=call.received_at_us,
            dispatched_at_us=sampled.dispatched_at_us,
            first_token_at_us=sampled.first_token_at_us,
            last_token_at_us=sampled.last_token_at_us,
        ),
    )


def replay_record(call: Call, answer: Answer) -> Completion:
    """The record of a call that was answered with another call's reply: no token was sampled for it."""
    return Completion(
        completion_id=call.completion_id,
        rollout_id=call.bearer.rollout_id,
        attempt=call.bearer.attempt,
        call_index=call.call_index,
        call_kind=CallKind.AGENT,
        dialect=call.dialect,
        model=call.request.model,
        policy_id=call.bearer.policy_id,
        sampling_requested=call.request.sampling_requested,
        response=_response(answer),
        finish_reason=FinishReason(answer.finish),
        streamed=call.request.stream,
        status=CompletionStatus.REPLAYED,
        retry_of=answer.completion_id,
        request_digest=call.digest,
        timings=CompletionTimings(received_at_us=call.received_at_us),
    )


def _delta(conversation: Conversation, prompt: Prompt | None) -> str:
    """The messages that are new since the parent; of a root all but the system prompt, which is a blob."""
    first = prompt.first_new if prompt and prompt.parent else conversation.system_count
    return _encode(conversation.messages[first:]).decode()


def _response(answer: Answer | None) -> str:
    if answer is None:
        return "{}"
    marks = {"malformed_calls": answer.malformed_calls} if answer.malformed_calls else {}
    message: Message = answer.message
    return _encode(msgspec.to_builtins(message) | marks).decode()


def _usage(answer: Answer | None) -> Usage:
    if answer is None:
        return Usage()
    told = answer.usage
    return Usage(
        prompt_tokens=told.prompt_tokens, completion_tokens=told.completion_tokens, cached_tokens=told.cached_tokens
    )


class Recorder:
    """Puts records into the log; a call is on record when `record` returns."""

    def __init__(self, producer: RecordProducer) -> None:
        self._producer = producer
        self._known: OrderedDict[str, asyncio.Future | None] = OrderedDict()
        """Blobs on their way (future), or in the log (None)."""

    def blob(self, data: bytes, media_type: str) -> str:
        """The name of content-addressed bytes, which are sent to the log when they were not seen before."""
        name = hashlib.sha256(data).hexdigest()
        if name not in self._known:
            delivery = self._producer.send_soon(BLOBS, Blob(sha256=name, media_type=media_type, data=data))
            self._known[name] = delivery
            delivery.add_done_callback(lambda done: self._settle(name, done))
            if len(self._known) > _KNOWN_BLOBS:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(name)
        return name

    async def record(self, completion: Completion) -> None:
        """Returns when the log has the completion, and the blobs that it names.

        Raises:
            DeliveryError: it has not, and will not.
        """
        # Blobs first: a completion in the log must not name what is not there. They left with the prompt.
        for delivery in self._on_their_way((completion.system_blob, completion.tools_blob)):
            await asyncio.shield(delivery)
        await self._producer.send(COMPLETIONS, completion, headers={"attempt": str(completion.attempt)})

    def _on_their_way(self, names: Iterable[str | None]) -> list[asyncio.Future]:
        found = (self._known.get(name) for name in names if name is not None)
        return [delivery for delivery in found if delivery is not None]

    def _settle(self, name: str, delivery: asyncio.Future) -> None:
        failed = delivery.cancelled() or delivery.exception() is not None
        if failed:
            self._known.pop(name, None)  # sent again with the next completion that names it
        elif name in self._known:
            self._known[name] = None
