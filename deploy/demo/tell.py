"""What a demo says while it runs, on standard error: one line a thing that happened."""

import sys
import time

from deploy.demo.report import DemoResult, report_lines
from deploy.local.supervisor import StackEvent
from schemas import Step


class Teller:
    """Prints lines with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        """One line."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def service_event(self, event: StackEvent) -> None:
        """A service got ready or crashed; starts and stops go without saying."""
        if event.change == "ready":
            self.say(f"{event.service} ready")
        elif event.change == "crashed":
            self.say(f"{event.service} crashed: {event.message.splitlines()[0]}")

    def step(self, step: Step, groups: int) -> None:
        """An optimizer step is durable."""
        metrics = step.metrics
        self.say(
            f"step {step.step}: version {step.policy_version}, reward {metrics.get('reward_mean', 0.0):.2f} "
            f"in {len(step.groups)} groups ({groups} finished), δ {metrics.get('delta_mean', 0.0):.4f}, "
            f"{step.timings.get('update', 0.0):.1f} s"
        )

    def result(self, result: DemoResult) -> None:
        """The whole report, for people."""
        print("\n".join(report_lines(result)), file=sys.stderr, flush=True)
