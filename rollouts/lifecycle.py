"""The events of one rollout: what is the same in all of them, and what is added as it goes on."""

import hashlib
from typing import Any

import msgspec

from schemas import EndReason, RolloutEvent, RolloutEventKind, RolloutTimings, Task
from schemas.ids import now_us, rollout_id


class Life:
    """Makes the events of one rollout, in order. The last one carries all that the earlier ones told."""

    def __init__(self, task: Task, group: str, group_index: int, *, node: str) -> None:
        self.rollout_id = rollout_id(group, group_index)
        self.group_id = group
        self._base = RolloutEvent(
            rollout_id=self.rollout_id,
            group_id=group,
            group_size=task.group_size,
            group_index=group_index,
            task_id=task.task_id,
            taskset=task.taskset,
            epoch=task.epoch,
            evaluation=task.evaluation,
            policy_id=task.policy_id,
            harness=task.harness.name,
            node=node,
            verifier_digest=verifier_digest(task),
            labels=task.labels,
        )

    def queued(self) -> RolloutEvent:
        """The launcher took it on."""
        at = now_us()
        self._base = msgspec.structs.replace(self._base, timings=RolloutTimings(queued_at_us=at))
        return self._event(RolloutEventKind.QUEUED, at)

    def scheduled(self, attempt: int, harness_version: str) -> RolloutEvent:
        """An attempt got its place; what an earlier attempt told is gone."""
        at = now_us()
        timings = RolloutTimings(queued_at_us=self._base.timings.queued_at_us, scheduled_at_us=at)
        self._base = msgspec.structs.replace(
            self._base,
            attempt=attempt,
            harness_version=harness_version,
            timings=timings,
            end_reason=None,
            exit_code=None,
            completion_count=None,
            cpu_s=None,
            memory_peak_bytes=None,
            message="",
        )
        return self._event(RolloutEventKind.SCHEDULED, at)

    def started(self, at_us: int) -> RolloutEvent:
        """The harness process runs."""
        self._timed(started_at_us=at_us)
        return self._event(RolloutEventKind.STARTED, at_us)

    def harness_exited(self, at_us: int, reason: EndReason, **facts: Any) -> RolloutEvent:
        """The harness process and all it started have ended. `facts` are further fields of the event."""
        self._timed(exited_at_us=at_us, first_call_at_us=facts.pop("first_call_at_us", None))
        self._base = msgspec.structs.replace(self._base, end_reason=reason, **facts)
        return self._event(RolloutEventKind.HARNESS_EXITED, at_us)

    def verified(
        self, reason: EndReason, reward: float | None, rewards: dict[str, float], message: str
    ) -> RolloutEvent:
        """The verifier has ended."""
        at = now_us()
        self._timed(verified_at_us=at)
        self._base = msgspec.structs.replace(
            self._base, end_reason=reason, reward=reward, rewards=rewards, message=message
        )
        return self._event(RolloutEventKind.VERIFIED, at)

    def finished(
        self, reason: EndReason, completions_end_offset: int, *, attempt: int, message: str = ""
    ) -> RolloutEvent:
        """Nothing more will be told of this rollout."""
        event = msgspec.structs.replace(
            self._base,
            attempt=attempt,
            end_reason=reason,
            completions_end_offset=completions_end_offset,
            message=message or self._base.message,
        )
        return msgspec.structs.replace(event, kind=RolloutEventKind.FINISHED, at_us=now_us())

    def _event(self, kind: RolloutEventKind, at_us: int) -> RolloutEvent:
        return msgspec.structs.replace(self._base, kind=kind, at_us=at_us)

    def _timed(self, **moments: int | None) -> None:
        self._base = msgspec.structs.replace(self._base, timings=msgspec.structs.replace(self._base.timings, **moments))


def verifier_digest(task: Task) -> str:
    """sha256 of the verifier's definition: rewards of different definitions must not be compared."""
    return hashlib.sha256(f"{task.verifier.kind}\0{task.verifier.options}".encode()).hexdigest()
