"""Verifiers: they turn what a harness left into a reward, beyond the harness's reach."""

from collections.abc import Mapping

from rollouts.runtimes.base import Runtime
from rollouts.verifiers.base import Options, Verifier
from rollouts.verifiers.command import CommandOptions, CommandVerifier
from rollouts.verifiers.exact import ExactOptions, ExactVerifier
from rollouts.verifiers.gym_client import GymWorker
from rollouts.verifiers.reasoning_gym import GymOptions, GymVerifier

OPTIONS: Mapping[str, type[Options]] = {
    "exact": ExactOptions,
    "command": CommandOptions,
    "reasoning_gym": GymOptions,
}
"""What tasks may say to each kind of verifier."""


def verifiers(runtime: Runtime, gym: GymWorker, timeout_s: float) -> dict[str, Verifier]:
    """One verifier of each kind. `timeout_s` is for tasks that do not say."""
    return {
        "exact": ExactVerifier(),
        "command": CommandVerifier(runtime, timeout_s),
        "reasoning_gym": GymVerifier(gym, timeout_s),
    }
