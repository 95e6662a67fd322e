"""What a demo runs: its tasks, its model, its settings, and what counts as success."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollouts.tasksets.template import TaskTemplate


@dataclass(frozen=True)
class DemoOptions:
    """What the user can choose."""

    quick: bool = False
    harness: str = "react"
    engine: str = "embedded"
    seed: int = 0
    steps: int | None = None
    shuffle_rewards: bool = False
    keep_running: bool = False


@dataclass(frozen=True)
class DemoPlan:
    """One demo, worked out."""

    options: DemoOptions
    model: str
    steps: int
    """Optimizer steps after which training ends at the latest."""
    least_steps: int
    """Optimizer steps without which a demo has shown nothing."""
    solved_at: float | None
    """Training also ends when the newest training rollouts have this mean reward: groups that all succeed have no
    reward spread and train nothing, so further steps would take ever longer. None: it always takes all steps."""
    questions: int
    """Held-out questions."""
    samples: int
    """Rollouts of each of them, before and after."""
    groups_per_step: int
    groups_in_flight: int
    template: TaskTemplate
    lora_rank: int
    lr: float
    train_timeout_s: float
    target: float | None
    """Mean held-out reward that the final version must reach; None: only steps and exactness count."""

    @property
    def most_groups(self) -> int:
        """Training tasks at hand: groups without reward spread train nothing, so more than the steps consume."""
        return self.steps * self.groups_per_step * 4

    def assignments(self, model: Path) -> Sequence[str]:
        """The settings of this demo."""
        options, temperature = self.options, self.template.sampling.temperature
        return [
            f"engine.kind={options.engine}",
            f"engine.model={model}",
            f"learner.model={model}",
            "learner.run_id=demo",
            f"learner.groups_per_step={self.groups_per_step}",
            f"learner.max_steps={self.steps}",
            "learner.max_staleness=1",
            f"learner.lora_rank={self.lora_rank}",
            f"learner.lr={self.lr}",
            f"learner.temperature={temperature}",
            f"learner.seed={options.seed}",
            f"learner.shuffle_rewards={str(options.shuffle_rewards).lower()}",
            f"launcher.groups_in_flight={self.groups_in_flight}",
        ]


def make_plan(options: DemoOptions) -> DemoPlan:
    """The demo that these options ask for."""
    return _quick(options) if options.quick else _full(options)


def _full(options: DemoOptions) -> DemoPlan:
    from rollouts.tasksets.needle import needle_template

    return DemoPlan(
        options=options,
        model="smollm2",
        steps=options.steps or 16,
        least_steps=min(options.steps or 4, 4),
        solved_at=0.97,
        questions=16,
        samples=2,
        groups_per_step=2,
        groups_in_flight=4,
        template=needle_template(options.harness),
        lora_rank=16,
        lr=1e-3,
        train_timeout_s=1800.0,
        target=0.7,
    )


def _quick(options: DemoOptions) -> DemoPlan:
    from deploy.demo.letters import letters_template

    # another agent program than ours takes a second or two of CPU to start: fewer rollouts keep the run quick
    light = options.harness == "react"
    steps = options.steps or (16 if light else 4)
    return DemoPlan(
        options=options,
        model="tiny",
        steps=steps,
        least_steps=steps,
        solved_at=None,
        questions=8 if light else 4,
        samples=4 if light else 2,
        groups_per_step=2,
        groups_in_flight=4,
        template=letters_template(options.harness),
        lora_rank=0,
        lr=5e-3,
        train_timeout_s=300.0,
        target=None,
    )
