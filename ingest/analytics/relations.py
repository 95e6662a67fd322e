"""The base relations that the views stand on: one for each topic, one for all dead letters.

Of a partition's files only the newest one is ever replaced (see `ingest.archive.files`). A query that meets a file
in that moment would mix two versions of it, so the newest files are copied into memory, whole, before a query that
needs them. All older files are read where they lie.
"""

from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.analytics.errors import QueryError
from ingest.analytics.types import column_definitions

_TRIES = 50


@dataclass(frozen=True)
class Listing:
    """The files of a relation at one moment."""

    closed: tuple[Path, ...] = ()
    """Those that do not change any more."""
    newest: tuple[Path, ...] = ()
    """The last one of each partition."""


@dataclass
class Relation:
    """Rows of all files that match a pattern below the archive's root."""

    name: str
    """Qualified name in the database."""
    schema: pa.Schema
    root: Path
    pattern: str
    _closed: tuple[Path, ...] = ()
    _loaded: tuple[tuple[Path, int, int], ...] = field(default=())

    @property
    def newest(self) -> str:
        """The table with the rows of the newest files; it stands for the relation in DuckDB's plans."""
        return f"{self.name}_newest"

    def create(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the relation, without rows."""
        connection.execute(f"CREATE TABLE {self.newest} ({column_definitions(self.schema)})")
        self._define(connection)

    def refresh(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Bring the relation up to what is archived now.

        Raises:
            QueryError: a file cannot be read.
        """
        listing = self._list()
        if listing.closed != self._closed:
            self._closed = listing.closed
            self._define(connection)
        for _ in range(_TRIES):
            present = _identities(listing.newest)
            if present == self._loaded:
                return
            error = self._load(connection, listing.newest)
            if error is None:
                self._loaded = present  # if a file was replaced meanwhile, the next round sees it
            elif present == _identities(listing.newest):
                raise QueryError(f"archive {self.root}: {str(error).splitlines()[0]}") from error
        raise QueryError(f"archive {self.root}: {self.pattern} changes faster than it can be read: try again")

    def _list(self) -> Listing:
        partitions: dict[Path, list[Path]] = {}
        for path in sorted(self.root.glob(self.pattern)):
            partitions.setdefault(path.parent, []).append(path)
        return Listing(
            closed=tuple(path for paths in partitions.values() for path in paths[:-1]),
            newest=tuple(paths[-1] for paths in partitions.values()),
        )

    def _define(self, connection: duckdb.DuckDBPyConnection) -> None:
        union = ""
        if self._closed:
            by_name = str(self._columns_differ()).lower()
            union = f" UNION ALL BY NAME FROM {_parquet(self._closed, union_by_name=by_name)}"
        connection.execute(f"CREATE OR REPLACE VIEW {self.name} AS FROM {self.newest}{union}")

    def _columns_differ(self) -> bool:
        """Whether files of another release are among them, so that all footers must be read before the first row.

        Columns change with a release only, so the first and the last file of each partition tell.
        """
        ends: dict[Path, tuple[Path, Path]] = {}
        for path in self._closed:
            ends[path.parent] = (ends.get(path.parent, (path, path))[0], path)
        wanted = self.schema.names
        return any(pq.read_schema(path).names != wanted for pair in ends.values() for path in pair)

    def _load(self, connection: duckdb.DuckDBPyConnection, paths: tuple[Path, ...]) -> duckdb.Error | None:
        columns = ", ".join(f'"{name}"' for name in self.schema.names)
        try:
            connection.execute(f"CREATE OR REPLACE TABLE {self.newest} ({column_definitions(self.schema)})")
            if paths:
                everything = (
                    f"FROM (SELECT * FROM {self.newest} UNION ALL BY NAME FROM {_parquet(paths, union_by_name='true')})"
                )
                connection.execute(f"INSERT INTO {self.newest} SELECT {columns} {everything}")
        except duckdb.Error as error:
            return error
        return None


def _identities(paths: tuple[Path, ...]) -> tuple[tuple[Path, int, int], ...]:
    """Path, inode and size: a replaced file differs."""
    return tuple((path, stat.st_ino, stat.st_size) for path in paths for stat in [path.stat()])


def _parquet(paths: tuple[Path, ...], *, union_by_name: str) -> str:
    files = ", ".join(quoted(str(path)) for path in paths)
    return f"read_parquet([{files}], hive_partitioning = false, union_by_name = {union_by_name})"


def quoted(text: str) -> str:
    """A string in SQL."""
    return "'" + text.replace("'", "''") + "'"
