"""Rollouts made up for tests: trees of turns, and the two logs in which they are recorded.

Every token id is used once only, so that a token says where it comes from.
"""

import itertools
from dataclasses import dataclass, field

from hypothesis import strategies as st

from schemas import (
    CallKind,
    Completion,
    CompletionStatus,
    EndReason,
    RolloutEvent,
    RolloutEventKind,
    VersionRun,
)
from schemas.arrays import pack_floats, pack_ids, unpack_ids


@dataclass
class Turn:
    """One exchange, before it is recorded."""

    name: str
    parent: "Turn | None"
    prompt: list[int]
    sampled: list[int]
    status: CompletionStatus = CompletionStatus.DELIVERED
    kind: CallKind = CallKind.AGENT

    @property
    def before(self) -> list[int]:
        """The whole prompt."""
        return [*(self.parent.whole if self.parent else []), *self.prompt]

    @property
    def whole(self) -> list[int]:
        return [*self.before, *self.sampled]

    @property
    def trained(self) -> bool:
        wanted = self.kind in (CallKind.AGENT, CallKind.SUBAGENT, CallKind.COMPACTION, CallKind.UNKNOWN)
        return wanted and self.status is CompletionStatus.DELIVERED and bool(self.sampled)

    def recorded(self, rollout_id: str = "r", attempt: int = 1, *, whole: bool = False) -> Completion:
        """As the proxy records it; `whole`: by a proxy that does not know the conversation."""
        return Completion(
            completion_id=self.name,
            rollout_id=rollout_id,
            attempt=attempt,
            parent_id=None if whole or self.parent is None else self.parent.name,
            call_kind=self.kind,
            status=self.status,
            prompt_token_count=len(self.before),
            prompt_token_ids=pack_ids(self.before if whole else self.prompt),
            completion_token_ids=pack_ids(self.sampled),
            rollout_logprobs=pack_floats(-float(token) for token in self.sampled),
            policy_version_runs=runs(len(self.sampled)),
        )


def runs(count: int) -> list[VersionRun]:
    """Versions 3 and 4 sampled one half each."""
    half = count // 2
    return [VersionRun(version=v, start=a, end=b) for v, a, b in ((3, 0, half), (4, half, count)) if a < b]


@st.composite
def turn_trees(draw: st.DrawFn, max_turns: int = 10, *, plain: bool = False) -> list[Turn]:
    """Turns in the order in which they were recorded. `plain`: all delivered, all of the agent, none empty."""
    token = itertools.count(1)
    turns: list[Turn] = []
    for number in range(draw(st.integers(1, max_turns))):
        parent = draw(st.sampled_from([None, *turns]))
        turns.append(
            Turn(
                name=f"c{number}",
                parent=parent,
                prompt=[next(token) for _ in range(draw(st.integers(0 if parent else 1, 3)))],
                sampled=[next(token) for _ in range(draw(st.integers(1 if plain else 0, 4)))],
                status=CompletionStatus.DELIVERED if plain else draw(st.sampled_from(CompletionStatus)),
                kind=CallKind.AGENT if plain else draw(st.sampled_from(CallKind)),
            )
        )
    return turns


def finished(rollout_id: str = "r", **values: object) -> RolloutEvent:
    """The last event of a rollout that went well."""
    defaults: dict[str, object] = {
        "rollout_id": rollout_id,
        "kind": RolloutEventKind.FINISHED,
        "group_id": "g",
        "end_reason": EndReason.COMPLETED,
        "reward": 1.0,
        "completions_end_offset": 0,
    }
    return RolloutEvent(**{**defaults, **values})  # type: ignore[arg-type]


@dataclass
class Logs:
    """One partition of both inputs."""

    events: list[RolloutEvent] = field(default_factory=list)
    completions: list[Completion] = field(default_factory=list)
    expected: dict[str, list[str]] = field(default_factory=dict)
    """Rollout → ids of the completions of its finished attempt, for the rollouts that finished."""


@st.composite
def logs(draw: st.DrawFn, max_rollouts: int = 5) -> Logs:
    """Rollouts that run at the same time, some with a second attempt, some late, some never finished."""
    result = Logs()
    scripts = [_script(draw, f"r{number}") for number in range(draw(st.integers(1, max_rollouts)))]
    while scripts := [script for script in scripts if script]:
        act = draw(st.sampled_from(scripts)).pop(0)
        if isinstance(act, Completion):
            result.completions.append(act)
            continue
        if act.kind is RolloutEventKind.FINISHED and act.rollout_id not in result.expected:
            act = RolloutEvent(**{**_fields(act), "completions_end_offset": len(result.completions)})
            result.expected[act.rollout_id] = list(
                dict.fromkeys(
                    c.completion_id
                    for c in result.completions
                    if (c.rollout_id, c.attempt) == (act.rollout_id, act.attempt)
                )
            )
        result.events.append(act)
    return result


def _script(draw: st.DrawFn, rollout_id: str) -> list[RolloutEvent | Completion]:
    acts: list[RolloutEvent | Completion] = []
    attempts = draw(st.integers(1, 2))
    for attempt in range(1, attempts + 1):
        acts.append(RolloutEvent(rollout_id=rollout_id, attempt=attempt, kind=RolloutEventKind.STARTED))
        token = itertools.count(1)
        parent = None
        for number in range(draw(st.integers(0, 3))):
            parent = Turn(f"{rollout_id}-{attempt}-{number}", parent, [next(token)], [next(token), next(token)])
            acts.append(parent.recorded(rollout_id, attempt))
            if draw(st.booleans()):
                acts.append(acts[-1])  # a spool that was drained twice
    if draw(st.booleans()) or draw(st.booleans()):
        acts.append(finished(rollout_id, attempt=attempts))
        if draw(st.booleans()):
            acts.append(Turn(f"{rollout_id}-late", None, [1], [2]).recorded(rollout_id, attempts))
        if draw(st.booleans()):
            acts.append(finished(rollout_id, attempt=attempts))
    return acts


def _fields(event: RolloutEvent) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}


def ids(data: bytes) -> list[int]:
    """Token ids of a column."""
    return unpack_ids(data)
