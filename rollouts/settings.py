"""Settings of the launcher."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ingest.service.settings import ServiceSettings


class LauncherSettings(ServiceSettings):
    """How many rollouts run, where, and for how long; section `launcher` of the configuration."""

    port: int = Field(default=8702, ge=0, le=65535)
    """Port of `/livez`, `/readyz` and `/metrics`; 0 takes any free one."""
    state_dir: Path = Path(".forgestream")
    """Holds `rollouts/`, one folder an attempt. One launcher a folder."""
    harnesses: Path = Path(".forgestream/harnesses")
    """Where harness packs are installed; launchers may share it."""
    proxy_url: str = "http://127.0.0.1:8700"
    """The proxy as a harness reaches it."""
    max_running: int = Field(default=16, ge=1)
    """Most rollouts that run at the same time."""
    groups_in_flight: int = Field(default=4, ge=0)
    """Training groups launched that the learner has not consumed yet: the bound on staleness. 0: no bound."""
    learner_grace_s: float = Field(default=60.0, ge=0)
    """How long a full gate waits for the first sign of a learner before it opens for good."""
    gate_stall_s: float = Field(default=600.0, gt=0)
    """A gate that stays shut so long, beside a live learner that consumes nothing, forgets what it counted."""
    tasks_ahead: int = Field(default=256, ge=1)
    """Tasks read ahead, so that an evaluation task need not wait behind training tasks at the gate."""
    attempts: int = Field(default=3, ge=1)
    """Launches of one rollout when the platform fails, before it ends as `infrastructure`."""
    retry_backoff_s: float = Field(default=1.0, ge=0)
    """Wait before the second attempt; doubled for each later one."""
    kill_grace_s: float = Field(default=2.0, ge=0)
    """Between the polite and the hard signal to a harness at a limit."""
    output_limit_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)
    """Most bytes of standard output, and of standard error, of one rollout."""
    workspace_limit_bytes: int = Field(default=1024**3, ge=1024)
    """Most bytes in a rollout's folder."""
    verifier_timeout_s: float = Field(default=60.0, gt=0)
    """Longest verification, where the task does not say."""
    keep: Literal["none", "failed", "all"] = "failed"
    """Which rollout folders stay after the end, for people to look at. `failed`: all but completed ones."""
    telemetry_s: float = Field(default=1.0, gt=0)
    """Interval of the launcher's own gauges on telemetry.v1."""
