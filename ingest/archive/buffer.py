"""Rows of one partition that were read and are not in a file yet."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from ingest.archive.files import append
from ingest.archive.settings import ArchiverSettings


class Row(Protocol):
    """What every row has, whatever its topic."""

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        ...


@dataclass
class Buffer:
    """Collects rows; `due` says when they should be written, `write` does it."""

    folder: Path
    table: Callable[[Sequence[Any]], pa.Table]
    """Makes a table of rows."""
    position: int
    """Offset after everything that was read, behind gaps in the log."""
    rows: list[Row] = field(default_factory=list)
    size_bytes: int = 0
    since_s: float = 0.0
    """When the oldest row came, on the caller's clock."""

    def add(self, row: Row, size_bytes: int, now_s: float) -> None:
        """Take a row in; `size_bytes` is about what its record takes."""
        if not self.rows:
            self.since_s = now_s
        self.rows.append(row)
        self.size_bytes += size_bytes
        self.position = max(self.position, row.offset + 1)

    def due(self, settings: ArchiverSettings, now_s: float) -> bool:
        """Whether the rows should be written now."""
        return bool(self.rows) and (
            len(self.rows) >= settings.flush_max_count
            or self.size_bytes >= settings.flush_max_bytes
            or now_s - self.since_s >= settings.flush_interval_s
        )

    def write(self, roll_bytes: int) -> int:
        """Write all rows, durably; how many. Blocks. After an error they are still there.

        Raises:
            ArchiveError: the archive cannot be read or written.
        """
        rows = self.rows
        if rows:
            append(self.folder, self.table(rows), self.position, roll_bytes)
        self.rows, self.size_bytes = [], 0
        return len(rows)
