"""Settings of the assembler: section `assembler`, `FORGESTREAM_ASSEMBLER__…`."""

from pydantic import Field

from ingest.assembler.state import Bounds
from ingest.service.settings import ServiceSettings


class AssemblerSettings(ServiceSettings):
    """How trajectories are assembled."""

    port: int = Field(default=8703, ge=0, le=65535)
    """Port of `/livez`, `/readyz` and `/metrics`; 0 takes any free one."""
    group: str = "assembler"
    """Consumer group; its members share the partitions."""
    commit_interval_s: float = Field(default=0.05, gt=0)
    """Trajectories of this long go into one transaction."""
    commit_max_count: int = Field(default=500, ge=1)
    """Most trajectories of one transaction."""
    transaction_timeout_s: float = Field(default=30.0, gt=0)
    """When a transaction that does not end counts as stalled, which ends the process."""
    rollout_max_bytes: int = Field(default=8 << 20, ge=1024, le=9 << 20)
    """Most bytes of a rollout's tokens, and of its samples; a larger one is not trained. A record takes 10 MB."""
    abandon_after_s: float = Field(default=86_400.0, gt=0)
    """An unfinished rollout of which the log says nothing for so long is given up."""
    orphan_after_s: float = Field(default=900.0, gt=0)
    """Completions of a rollout of which no event was ever read are dropped after so long."""
    orphan_max_bytes: int = Field(default=64 << 20, ge=1)
    """completions.v1 is not read further while so much of it waits for events that were not read yet."""
    waiting_max_count: int = Field(default=10_000, ge=1)
    """rollouts.v1 is not read further while so many finished rollouts of a partition wait for completions."""

    def bounds(self) -> Bounds:
        """What keeps a partition's state small."""
        return Bounds(
            rollout_max_bytes=self.rollout_max_bytes,
            abandon_after_us=round(self.abandon_after_s * 1e6),
            orphan_after_us=round(self.orphan_after_s * 1e6),
            orphan_max_bytes=self.orphan_max_bytes,
            waiting_max_count=self.waiting_max_count,
        )
