"""One model call, from its prompt to its record: the middle of the proxy, free of HTTP and of any dialect."""

import asyncio
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import msgspec
from structlog.typing import FilteringBoundLogger

from ingest.errors import DeliveryError
from proxy.broadcast import Broadcast
from proxy.conversation import Answer, Piece, ToolCall, Usage
from proxy.engine.client import EngineClient, Job
from proxy.engine.sampled import Sampled
from proxy.errors import EngineRefused, EngineTrouble, Problem, RequestError
from proxy.metrics import ProxyMetrics
from proxy.prompting import Prompter
from proxy.recorder import Call, Outcome, Prompt, Recorder, completion_record
from proxy.rendering.renderer import Renderer
from proxy.sessions.attempts import Attempt, Attempts
from proxy.sessions.chains import Node
from schemas import CompletionStatus, FinishReason, Sampling


@dataclass(frozen=True)
class Parts:
    """What every exchange works with."""

    renderer: Renderer
    prompter: Prompter
    engines: EngineClient
    recorder: Recorder
    attempts: "Attempts[Exchange]"
    metrics: ProxyMetrics
    log: FilteringBoundLogger


# How vLLM says that a prompt does not fit, in its several places.
_TOO_LONG = ("context length", "maximum model length")


class _Stage(Enum):
    SAMPLING = auto()
    COMMITTING = auto()


class Exchange:
    """Samples one completion, tells it to its followers while it comes, and records it before it is called whole."""

    def __init__(self, parts: Parts, attempt: "Attempt[Exchange]", call: Call) -> None:
        self.call = call
        self.broadcast = Broadcast(call.completion_id, call.received_at_us // 1_000_000)
        self._parts = parts
        self._attempt = attempt
        self._stage = _Stage.SAMPLING
        self._given_up: str | None = None
        self._sampled = Sampled()
        self._sampling = _applied(call, max_tokens=0)
        self._prompt: Prompt | None = None
        self._decoder = parts.renderer.decoder()
        self._router = parts.renderer.router(parse_calls=call.request.parse_calls)
        self._render_s = 0.0
        self._ack_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self, on_done: Callable[["Exchange"], None]) -> asyncio.Task[None]:
        """Begin, in a task of its own: it may outlive the request that asked for it."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _task: on_done(self))
        return self._task

    def give_up(self, reason: str) -> bool:
        """Nobody waits any more: stop sampling, and record what came. False: too late, the record is on its way."""
        if self._task is None or self._stage is _Stage.COMMITTING:
            return False
        if self._given_up is None:
            self._given_up = reason
            self._task.cancel()
        return True

    def timings(self) -> dict[str, float]:
        """Milliseconds by phase, for the log."""
        sampled = self._sampled
        engine_us = (sampled.last_token_at_us or 0) - (sampled.dispatched_at_us or 0)
        return {
            "render_ms": round(self._render_s * 1e3, 3),
            "engine_ms": round(max(engine_us, 0) / 1e3, 3),
            "ack_ms": round(self._ack_s * 1e3, 3),
        }

    async def _run(self) -> None:
        failure: RequestError | None = None
        try:
            await self._sample()
            outcome = self._delivered()
        except RequestError as error:
            failure, outcome = error, self._failed(error)
        except (EngineRefused, EngineTrouble, DeliveryError) as error:
            failure = _told(error)
            outcome = self._failed(RequestError(failure.problem, str(error)))
        except asyncio.CancelledError:
            if self._given_up is None:
                raise
            _uncancel()
            failure = RequestError(Problem.STOPPING, self._given_up)
            outcome = self._ended(CompletionStatus.ABORTED, self._given_up, FinishReason.ABORT)
        except Exception as error:  # a bug must end one call, on record, and not the service
            self._parts.log.exception("call failed", completion_id=self.call.completion_id)
            failure = RequestError(Problem.INTERNAL, "the proxy failed; its log says why")
            outcome = self._failed(RequestError(Problem.INTERNAL, repr(error)))
        self._stage = _Stage.COMMITTING
        await self._commit(outcome, failure)

    async def _sample(self) -> None:
        call, attempt, parts = self.call, self._attempt, self._parts
        limits = call.bearer.limits
        attempt.check_calls(limits)
        started = time.perf_counter()
        prompt = self._prompt = await parts.prompter.prompt(attempt.chains, call.request.conversation)
        self._render_s = time.perf_counter() - started
        left = attempt.tokens_left(limits, len(prompt.ids))
        wanted = (call.bearer.sampling.max_tokens, call.request.max_tokens, left)
        max_tokens = parts.prompter.completion_tokens(prompt, *wanted)
        self._sampling = msgspec.structs.replace(self._sampling, max_tokens=max_tokens)
        attempt.check_calls(limits)  # others may have begun while this one was rendered
        attempt.calls += 1
        attempt.tokens += len(prompt.ids)
        try:
            await parts.engines.sample(self._job(prompt), self._sampled, self._on_tokens)
        finally:
            attempt.tokens += len(self._sampled.ids)
        rest = self._decoder.end()
        self._show([*(self._router.feed(rest) if rest else []), *self._router.end()])

    def _job(self, prompt: Prompt) -> Job:
        return Job(
            completion_id=self.call.completion_id,
            rollout_id=self.call.bearer.rollout_id,
            policy_id=self.call.bearer.policy_id,
            prompt=prompt.ids,
            sampling=self._sampling,
            stop_ids=self._parts.renderer.stop_ids,
        )

    def _on_tokens(self, ids: list[int]) -> None:
        text = self._decoder.feed(self._parts.renderer.shown(ids))
        if text:
            self._show(self._router.feed(text))

    def _show(self, pieces: list[Piece]) -> None:
        self.broadcast.add(pieces)

    def _delivered(self) -> Outcome:
        """All tokens are there: what is told to the harness, and whether it may be trained."""
        answer, runs = self._answer(), tuple(self._sampled.version_runs())
        finish = FinishReason(answer.finish)
        if not self._sampled.ids:
            self._sampled.faults.append("the engine sampled no token")
        if faults := self._sampled.faults:  # fail closed: the harness has its answer, the learner never sees it
            self._parts.metrics.unaligned.inc()
            return Outcome(
                CompletionStatus.FAILED, answer, runs, error=f"unaligned: {'; '.join(faults)}", finish=finish
            )
        return Outcome(CompletionStatus.DELIVERED, answer, runs, finish=finish)

    def _answer(self) -> Answer:
        prompt, sampled, pieces = self._prompt, self._sampled, self.broadcast.pieces
        assert prompt is not None
        calls = tuple(piece for piece in pieces if isinstance(piece, ToolCall))
        return Answer(
            completion_id=self.call.completion_id,
            created_s=self.broadcast.created_s,
            text="".join(piece for piece in pieces if isinstance(piece, str)),
            calls=calls,
            finish="tool_calls" if calls else "length" if sampled.finish == "length" else "stop",
            usage=Usage(len(prompt.ids), len(sampled.ids), sampled.cached_tokens),
            malformed_calls=self._router.malformed,
            pieces=_joined(pieces),
        )

    def _failed(self, error: RequestError) -> Outcome:
        return self._ended(CompletionStatus.FAILED, str(error), FinishReason.ERROR)

    def _ended(self, status: CompletionStatus, error: str, finish: FinishReason) -> Outcome:
        return Outcome(status, runs=tuple(self._sampled.version_runs()), error=error, finish=finish)

    async def _commit(self, outcome: Outcome, failure: RequestError | None) -> None:
        """Records, then tells: the last byte of a reply comes after its record is acknowledged."""
        if failure is not None and self._is_known_refusal(failure):
            self._settle(outcome, failure)
            return
        record = completion_record(
            self.call,
            outcome,
            prompt=self._prompt,
            sampling=self._sampling,
            sampled=self._sampled,
            template_digest=self._parts.renderer.template_digest,
        )
        started = time.perf_counter()
        try:
            await self._parts.recorder.record(record)
        except DeliveryError as error:
            self._parts.metrics.not_recorded.inc()
            self._parts.log.error(
                "completion not recorded",
                completion_id=self.call.completion_id,
                status=outcome.status,
                error=str(error),
            )
            failure = failure or _told(error)
        self._ack_s = time.perf_counter() - started
        self._settle(outcome, failure)

    def _is_known_refusal(self, failure: RequestError) -> bool:
        """A harness that goes on asking beyond its limits must not flood the log: the first refusal is on record."""
        if failure.problem not in (Problem.CALL_LIMIT, Problem.TOKEN_LIMIT):
            return False
        known = failure.problem in self._attempt.refused
        self._attempt.refused.add(failure.problem)
        return known

    def _settle(self, outcome: Outcome, failure: RequestError | None) -> None:
        if failure is None and outcome.answer is not None:
            if outcome.status is CompletionStatus.DELIVERED:
                self._remember(outcome.answer)
            self._attempt.remember(self.call.digest, outcome.answer)
            self.broadcast.finish(answer=outcome.answer)
        else:
            self._attempt.remember_failure(self.call.digest, self.call.completion_id)
            self.broadcast.finish(failure=failure or RequestError(Problem.INTERNAL, "no answer"))
        self._count(outcome)

    def _remember(self, answer: Answer) -> None:
        """The completion becomes a node that later requests continue. Only what the log has delivered may be one."""
        prompt = self._prompt
        assert prompt is not None
        history = prompt.match.history
        history.add(answer.message)
        node = Node(
            completion_id=self.call.completion_id,
            parent=prompt.parent,
            prompt=prompt.new_ids,
            completion=array("i", self._sampled.ids),
            length=len(prompt.ids) + len(self._sampled.ids),
            system_blob=prompt.system_blob,
            tools_blob=prompt.tools_blob,
        )
        before = self._attempt.chains.size_bytes
        self._attempt.chains.add(history.digest, node)
        self._parts.attempts.grown(self._attempt, self._attempt.chains.size_bytes - before)

    def _count(self, outcome: Outcome) -> None:
        metrics, sampled = self._parts.metrics, self._sampled
        metrics.render_s.observe(self._render_s)
        metrics.ack_s.observe(self._ack_s)
        if sampled.dispatched_at_us and sampled.last_token_at_us:
            metrics.engine_s.observe((sampled.last_token_at_us - sampled.dispatched_at_us) / 1e6)
            metrics.prompt_tokens.inc(len(self._prompt.ids) if self._prompt else 0)
            metrics.sampled_tokens.inc(len(sampled.ids))
        if sampled.cuts:
            metrics.cuts.inc(sampled.cuts)
        if self._router.malformed:
            metrics.malformed_calls.inc(self._router.malformed)


def _applied(call: Call, max_tokens: int) -> Sampling:
    """Sampling as the rollout's bearer has it, whatever the harness asked for.

    Training needs the log-probability of the very distribution that was sampled: no nucleus, no top-k.
    """
    wanted = call.bearer.sampling
    free = call.bearer.evaluation
    return Sampling(
        temperature=wanted.temperature,
        top_p=wanted.top_p if free else 1.0,
        top_k=wanted.top_k if free else -1,
        max_tokens=max_tokens,
        seed=None if wanted.seed is None else wanted.seed + call.call_index,
    )


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The same reply in as few pieces as it has: what is kept for repeats should not be one string a token."""
    joined: list[Piece] = []
    text: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            text.append(piece)
            continue
        joined += ["".join(text), piece] if text else [piece]
        text = []
    return [*joined, "".join(text)] if text else joined


def _told(error: EngineRefused | EngineTrouble | DeliveryError) -> RequestError:
    """What the harness is told of trouble behind the proxy; the record and the log say more."""
    if isinstance(error, DeliveryError):
        return RequestError(Problem.NOT_RECORDED, "the completion could not be recorded")
    if isinstance(error, EngineTrouble):
        return RequestError(Problem.ENGINE_AWAY, "the policy's engine did not answer in time")
    if error.status == 400 and any(words in str(error).lower() for words in _TOO_LONG):
        return RequestError(Problem.CONTEXT_LENGTH, str(error), param="messages")
    return RequestError(Problem.ENGINE_REFUSED, "the policy's engine refused the request")


def _uncancel() -> None:
    """The cancellation was ours and has done its work: what follows may be awaited."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
