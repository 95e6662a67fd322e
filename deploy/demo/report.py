"""What a demo found out: asked of the archive in SQL, and shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deploy.audit import Audit
from deploy.demo.plan import DemoPlan
from deploy.demo.tasks import AFTER, BEFORE
from deploy.local.loop import LoopState
from deploy.output import table

LEAST_RISE = 0.3

BY_VERSION = """
SELECT policy_version_min AS policy_version, evaluation AS held_out, count(*) AS rollouts, avg(reward) AS reward
FROM trajectories WHERE reward IS NOT NULL GROUP BY ALL ORDER BY ALL
"""
BY_PHASE = """
SELECT labels['phase'] AS phase, count(*) AS rollouts, count(reward) AS judged, avg(reward) AS reward
FROM trajectories WHERE evaluation GROUP BY ALL
"""
TOTALS = """
SELECT count(*) AS trajectories, count(DISTINCT group_id) AS groups,
       sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens
FROM trajectories
"""
STEPS = """
SELECT count(*) AS steps, avg(metrics['delta_mean']) AS delta_mean, sum(trained_tokens) AS trained_tokens FROM steps
"""
ARCHIVED = """
SELECT (SELECT count(*) FROM trajectories) AS trajectories, (SELECT count(*) FROM steps) AS steps
"""
COMPLETIONS = "SELECT count(*) AS completions FROM completions"

Row = Mapping[str, Any]
Ask = Callable[[str], list[dict[str, Any]]]
"""Runs one SQL query over the archive."""


@dataclass(frozen=True)
class DemoResult:
    """Everything that a demo tells at its end."""

    plan: DemoPlan
    folder: Path
    rollouts: int
    completions: int
    trajectories: int
    groups: int
    steps: int
    policy_version: int
    reward_by_version: Sequence[Row]
    held_out: Mapping[str, float]
    """Mean reward on the held-out questions, `before` and `after`."""
    unjudged: int
    """Held-out rollouts without a reward; they are in no mean."""
    tokens: Mapping[str, int]
    delta_mean: float | None
    audit: Audit
    ready_s: Mapping[str, float] = field(default_factory=dict)
    wall_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def rose(self) -> bool:
        """Whether the held-out reward rose to the target; for a plan without one, whether it did not matter."""
        if self.plan.target is None:
            return True
        before, after = self.held_out.get(BEFORE), self.held_out.get(AFTER)
        return before is not None and after is not None and after >= max(self.plan.target, before + LEAST_RISE)

    @property
    def exact(self) -> bool:
        """Whether nothing was lost or doubled."""
        return not self.audit.lost and not self.audit.doubled

    @property
    def succeeded(self) -> bool:
        """What the exit status says. A control with shuffled rewards succeeds when nothing was learned."""
        if self.plan.target is not None and self.plan.options.shuffle_rewards:
            return self.exact and not self.rose
        return self.exact and self.rose and self.steps >= self.plan.least_steps

    def with_walls(self, wall_s: Mapping[str, float]) -> "DemoResult":
        """The same with the seconds of each phase."""
        return replace(self, wall_s=wall_s)

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` prints last."""
        options = self.plan.options
        return {
            "rollouts": self.rollouts,
            "completions": self.completions,
            "trajectories": self.trajectories,
            "groups": self.groups,
            "steps": self.steps,
            "policy_version": self.policy_version,
            "reward_by_version": [dict(row) for row in self.reward_by_version],
            "held_out": dict(self.held_out),
            "unjudged": self.unjudged,
            "rose": self.rose,
            "succeeded": self.succeeded,
            "delta_mean": self.delta_mean,
            "tokens": dict(self.tokens),
            "lost": len(self.audit.lost),
            "doubled": len(self.audit.doubled),
            "ready_s": dict(self.ready_s),
            "wall_s": dict(self.wall_s),
            "model": self.plan.model,
            "engine": options.engine,
            "harness": options.harness,
            "seed": options.seed,
            "shuffle_rewards": options.shuffle_rewards,
        }


def make_result(
    plan: DemoPlan, folder: Path, state: LoopState, audit: Audit, ask: Ask, ready_s: Mapping[str, float]
) -> DemoResult:
    """Ask the archive; `ask` runs one SQL query over it."""
    phases = ask(BY_PHASE)
    (totals,), (steps,), (completions,) = ask(TOTALS), ask(STEPS), ask(COMPLETIONS)
    return DemoResult(
        plan=plan,
        folder=folder,
        rollouts=state.rollouts_finished,
        completions=completions["completions"],
        trajectories=totals["trajectories"],
        groups=totals["groups"],
        steps=steps["steps"],
        policy_version=state.policy_version or 0,
        reward_by_version=[_rounded(row) for row in ask(BY_VERSION)],
        held_out={row["phase"]: round(row["reward"], 4) for row in phases if row["reward"] is not None},
        unjudged=sum(row["rollouts"] - row["judged"] for row in phases),
        tokens={
            "prompt": int(totals["prompt_tokens"] or 0),
            "sampled": int(totals["completion_tokens"] or 0),
            "trained": int(steps["trained_tokens"] or 0),
        },
        delta_mean=None if steps["delta_mean"] is None else round(steps["delta_mean"], 6),
        audit=audit,
        ready_s=dict(ready_s),
    )


def report_lines(result: DemoResult) -> list[str]:
    """The report for people."""
    rows = _versions(result.reward_by_version)
    tokens, walls = result.tokens, "  ".join(f"{name} {seconds:.0f} s" for name, seconds in result.wall_s.items())
    delta = "–" if result.delta_mean is None else f"{result.delta_mean:.4f}"
    return [
        "",
        "reward by policy version",
        *table(rows, ["version", "training rollouts", "training reward", "held-out rollouts", "held-out reward"]),
        "",
        verdict(result),
        f"{result.rollouts} rollouts, {result.completions} completions, {result.trajectories} trajectories in "
        f"{result.groups} groups, {result.steps} optimizer steps",
        f"tokens: {tokens['prompt']} prompt, {tokens['sampled']} sampled, {tokens['trained']} trained; "
        f"mean |Δ log p| between engine and learner {delta}",
        f"lost {len(result.audit.lost)}, doubled {len(result.audit.doubled)}",
        *(f"  {line}" for line in (*result.audit.lost, *result.audit.doubled)[:20]),
        f"wall time: {walls}",
        "",
        f"everything lies in {result.folder}: logs/ archive/ runs/demo/policies/",
        f"next:  forgestream sql --state {result.folder} --query reward_by_version",
        f'       forgestream sql --state {result.folder} "SELECT * FROM rollouts LIMIT 5"',
        "       forgestream up",
    ]


def verdict(result: DemoResult) -> str:
    """Whether it learned, in one honest sentence."""
    plan = result.plan
    before, after = result.held_out.get(BEFORE), result.held_out.get(AFTER)
    if before is None or after is None:
        return "held-out reward: not measured (no judged rollouts)"
    how = f"sampled at T {plan.template.sampling.temperature:g}, {plan.questions} questions × {plan.samples}"
    change = f"held-out reward {before:.2f} at version 0, {after:.2f} at version {result.policy_version} ({how})"
    if plan.target is None:
        return f"{change}; a quick run shows that the loop works, not that it learns"
    if plan.options.shuffle_rewards:
        return f"{change}: shuffled rewards, {'and yet it ROSE' if result.rose else 'no rise, as it should be'}"
    return f"{change}: the policy {'learned' if result.rose else f'did NOT reach {plan.target:g}'}"


def _versions(rows: Sequence[Row]) -> list[dict[str, Any]]:
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        line = merged.setdefault(row["policy_version"], {"version": row["policy_version"]})
        kind = "held-out" if row["held_out"] else "training"
        line |= {f"{kind} rollouts": row["rollouts"], f"{kind} reward": round(row["reward"], 3)}
    return list(merged.values())


def _rounded(row: Row) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}
