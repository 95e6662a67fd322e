"""Runs one attempt of one rollout: harness, then verifier, told step by step."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from ingest.bearer import Bearer, mint
from rollouts.calls import CallLog, CallTail
from rollouts.classify import Signs, classify
from rollouts.errors import RuntimeFault, VerifierError, VerifierTimeout
from rollouts.harnesses import PACKS
from rollouts.harnesses.base import Assignment, HarnessPack, Result
from rollouts.lifecycle import Life
from rollouts.options import read_json
from rollouts.runtimes.base import Ended, Job, Runtime
from rollouts.teller import EventTeller
from rollouts.verifiers import OPTIONS
from rollouts.verifiers.base import Submission, Verdict, Verifier
from schemas import EndReason, Task
from schemas.ids import now_us

_log = structlog.get_logger(__name__)

_COUNT_TIMEOUT_S = 20.0
_UNLIMITED_S = 7 * 86_400.0
_TOKEN_SLACK_S = 900.0
"""A token outlives its harness's wall limit by this: start, verification, a clock that is off."""


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt ended."""

    reason: EndReason
    message: str
    completions_end_offset: int


class AttemptRunner:
    """Runs attempts with one runtime. Holds no state of a rollout."""

    def __init__(
        self,
        runtime: Runtime,
        verifiers: Mapping[str, Verifier],
        calls: CallTail,
        teller: EventTeller,
        *,
        proxy_url: str,
        secret: str,
        harnesses: Path,
    ) -> None:
        self._runtime = runtime
        self._verifiers = verifiers
        self._calls = calls
        self._teller = teller
        self._proxy_url = proxy_url.rstrip("/")
        self._secret = secret
        self._harnesses = harnesses
        self._installing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._installed: set[str] = set()

    async def run(self, task: Task, life: Life, attempt: int) -> AttemptEnd:
        """Run an attempt of a task that was checked.

        Raises:
            IngestError: the log is out of reach; how the attempt ended is not known.
        """
        pack = PACKS[task.harness.name]
        # in the log before anything starts: a launcher that dies here must not use this number again
        await self._teller.tell(life.scheduled(attempt, pack.version))
        self._verifiers[task.verifier.kind].expect()
        with self._calls.watch(life.rollout_id, attempt) as calls:
            try:
                await self._install(pack)
                job = self._job(pack, task, life, attempt)
                ended = await self._runtime.run(job, calls.seen, lambda at: self._teller.tell_soon(life.started(at)))
            except RuntimeFault as error:
                return await self._failed(life, calls, str(error))
            except (OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
                _log.exception("attempt failed", rollout_id=life.rollout_id, attempt=attempt)
                return await self._failed(life, calls, f"{type(error).__name__}: {error}")
            end, result = await self._exited(pack, life, calls, ended)
        if end.reason is not EndReason.COMPLETED:
            return end
        submission = Submission(
            rollout_id=life.rollout_id,
            attempt=attempt,
            answer=result.answer or "",
            finish_reason=result.finish_reason or calls.last_finish,
            workspace=ended.workspace,
        )
        return await self._verify(task, life, submission, end)

    async def _install(self, pack: HarnessPack) -> None:
        async with self._installing[pack.name]:
            if pack.name not in self._installed:
                await pack.install(self._harnesses)
                self._installed.add(pack.name)

    def _job(self, pack: HarnessPack, task: Task, life: Life, attempt: int) -> Job:
        places = self._runtime.places(life.rollout_id, attempt)
        token = self._token(task, life, attempt)
        assignment = Assignment(
            instruction=task.instruction,
            base_url=f"{self._proxy_url}/r/{token}/v1",
            token=token,
            model=task.policy_id,
            places=places,
        )
        start = pack.start(assignment, read_json(task.harness.options, pack.options))
        return Job(
            rollout_id=life.rollout_id,
            attempt=attempt,
            command=start.command,
            env=start.env,
            stdin=start.stdin,
            home_files=start.home_files,
            workspace_files=tuple(task.files),
            image=task.image,
            preload=start.preload,
            wall_s=task.limits.wall_s,
            startup_s=task.limits.startup_s,
        )

    def _token(self, task: Task, life: Life, attempt: int) -> str:
        bearer = Bearer(
            rollout_id=life.rollout_id,
            attempt=attempt,
            group_id=life.group_id,
            policy_id=task.policy_id,
            evaluation=task.evaluation,
            sampling=task.sampling,
            limits=task.limits,
            exp=int(time.time() + (task.limits.wall_s or _UNLIMITED_S) + _TOKEN_SLACK_S),
        )
        return mint(bearer, self._secret)

    async def _exited(self, pack: HarnessPack, life: Life, calls: CallLog, ended: Ended) -> tuple[AttemptEnd, Result]:
        """The harness has ended: count its calls, read its result, say why it ended."""
        end_offset = await self._calls.end_offset(life.rollout_id)
        counted = await self._calls.reached(life.rollout_id, end_offset, timeout_s=_COUNT_TIMEOUT_S)
        result = pack.read(ended)
        count = calls.count if counted else None
        reason, message = classify(Signs(ended.exit_code, ended.stop, result, count, calls.last_error))
        event = life.harness_exited(
            ended.exited_at_us,
            reason,
            first_call_at_us=calls.first_at_us,
            exit_code=ended.exit_code,
            completion_count=count,
            cpu_s=ended.cpu_s,
            memory_peak_bytes=ended.memory_peak_bytes,
            image_digest=ended.image_digest,
            message=message,
        )
        self._teller.tell_soon(event)
        return AttemptEnd(reason, message, end_offset), result

    async def _failed(self, life: Life, calls: CallLog, message: str) -> AttemptEnd:
        """The platform could not run the harness."""
        end_offset = await self._calls.end_offset(life.rollout_id)
        reason = EndReason.INFRASTRUCTURE
        event = life.harness_exited(now_us(), reason, first_call_at_us=calls.first_at_us, message=message)
        self._teller.tell_soon(event)
        return AttemptEnd(reason, message, end_offset)

    async def _verify(self, task: Task, life: Life, submission: Submission, end: AttemptEnd) -> AttemptEnd:
        reason, verdict, message = await self._judge(task, submission)
        reward, rewards = (verdict.reward, verdict.rewards) if verdict else (None, {})
        self._teller.tell_soon(life.verified(reason, reward, rewards, message))
        return AttemptEnd(reason, message, end.completions_end_offset)

    async def _judge(self, task: Task, submission: Submission) -> tuple[EndReason, Verdict | None, str]:
        kind = task.verifier.kind
        options = read_json(task.verifier.options, OPTIONS[kind])
        try:
            verdict = await self._verifiers[kind].verify(options, submission)
        except VerifierTimeout as error:
            return EndReason.VERIFIER_TIMEOUT, None, str(error)
        except VerifierError as error:
            return EndReason.VERIFIER_ERROR, None, str(error)
        except (OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
            _log.exception("verifier failed", rollout_id=submission.rollout_id, attempt=submission.attempt)
            return EndReason.VERIFIER_ERROR, None, f"{type(error).__name__}: {error}"
        return EndReason.COMPLETED, verdict, verdict.message
