"""Settings of the archiver: section `archiver`, `FORGESTREAM_ARCHIVER__…`."""

from pathlib import Path

from pydantic import Field

from ingest.service.settings import ServiceSettings


class ArchiverSettings(ServiceSettings):
    """Where and how topics become Parquet."""

    port: int = Field(default=8705, ge=0, le=65535)
    """Port of `/livez`, `/readyz` and `/metrics`; 0 takes any free one."""
    root: Path = Path(".forgestream/archive")
    """The archive's folder."""
    flush_interval_s: float = Field(default=2.0, gt=0)
    """A record is in a file at the latest so long after it was read."""
    flush_max_count: int = Field(default=10_000, ge=1)
    """Rows of a partition that are written without waiting for that."""
    flush_max_bytes: int = Field(default=16 << 20, ge=1)
    """The same in bytes of records."""
    roll_bytes: int = Field(default=2 << 20, ge=1)
    """A newest file smaller than this is written again with new rows in it, so that files stay few."""
