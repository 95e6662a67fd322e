"""A read-only DuckDB over an archive's folder.

Each query sees what is archived at its beginning. The database itself is in memory; it may read below the archive's
folder and nowhere else, and runs nothing but SELECT.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import duckdb

from ingest.analytics.errors import NoArchive, NotReadOnly, QueryError, UnknownQuery
from ingest.analytics.queries import NAMED_QUERIES, NamedQuery
from ingest.analytics.relations import Relation, quoted
from ingest.analytics.views import DEAD_LETTERS, VIEWS, base
from ingest.archive import columns
from schemas import ALL_TOPICS
from schemas.topics import DEAD_LETTER_SUFFIX

_FILES = "partition=*/*.parquet"
_EXPLAIN = re.compile(r"\s*explain\s+(analyze\s+)?", re.IGNORECASE)


class Result(NamedTuple):
    """Columns and rows of an answer."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class ColumnInfo:
    """A column of a view."""

    name: str
    type: str
    doc: str


@dataclass(frozen=True)
class ViewInfo:
    """A view and what its columns mean."""

    name: str
    doc: str
    columns: list[ColumnInfo]


def open_archive(path: Path) -> "Archive":
    """The archive in a folder; an empty folder has empty views.

    Raises:
        NoArchive: there is no such folder.
    """
    if not path.is_dir():
        raise NoArchive(f"no archive at {path}: run `forgestream up` or `forgestream archiver`, or give another folder")
    return Archive(path.resolve())


class Archive:
    """SQL over one archive. Not for several threads at once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._connection = duckdb.connect()
        self._relations = _relations(root)
        self._connection.execute("CREATE SCHEMA raw")
        for relation in self._relations:
            relation.create(self._connection)
        for view in VIEWS:
            self._connection.execute(f'CREATE VIEW "{view.name}" AS {view.sql}')
        for setting in _settings(root):
            self._connection.execute(f"SET {setting}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the database."""
        self._connection.close()

    def query(self, sql: str, parameters: Sequence[object] = ()) -> Result:
        """The answer to one SELECT (or FROM, WITH, VALUES, DESCRIBE, SUMMARIZE, EXPLAIN); `?` stand for `parameters`.

        Lists, structs and maps come as list and dict, times as naive UTC datetimes.

        Raises:
            NotReadOnly: another statement, or several.
            QueryError: it cannot be answered; the message says why in one line.
        """
        self._check(sql)
        self._refresh(sql)
        try:
            cursor = self._connection.execute(sql, list(parameters))
            return Result([column[0] for column in cursor.description or []], cursor.fetchall())
        except duckdb.Error as error:
            raise QueryError(self._explained(error)) from error

    def named(self, name: str) -> Result:
        """The answer to a named query.

        Raises:
            UnknownQuery: there is none of that name.
        """
        for query in NAMED_QUERIES:
            if query.name == name:
                return self.query(query.sql)
        raise UnknownQuery(f"no query is named {name}: there are {', '.join(query.name for query in NAMED_QUERIES)}")

    def queries(self) -> tuple[NamedQuery, ...]:
        """The named queries."""
        return NAMED_QUERIES

    def views(self) -> list[ViewInfo]:
        """The views, with a type and a doc for each column."""
        return [self._info(view.name) for view in VIEWS]

    def _info(self, name: str) -> ViewInfo:
        view = next(view for view in VIEWS if view.name == name)
        types = {row[0]: row[1] for row in self._connection.execute(f'DESCRIBE "{name}"').fetchall()}
        return ViewInfo(name, view.doc, [ColumnInfo(c.name, types[c.name], c.doc) for c in view.columns])

    def _check(self, sql: str) -> None:
        """Refuse what is not one SELECT. EXPLAIN ANALYZE runs what it explains, so that must be one too."""
        explained = _EXPLAIN.match(sql)
        try:
            statements = self._connection.extract_statements(sql[explained.end() :] if explained else sql)
        except duckdb.Error as error:
            raise QueryError(self._explained(error)) from error
        if len(statements) != 1:
            raise NotReadOnly(f"one statement at a time, please: these are {len(statements)}")
        if statements[0].type != duckdb.StatementType.SELECT:
            kind = str(statements[0].type).rpartition(".")[2]
            raise NotReadOnly(f"{kind} is refused: the archive is read-only, only SELECT is answered")

    def _refresh(self, sql: str) -> None:
        """Bring the relations that a query needs up to date."""
        try:
            names = self._connection.get_table_names(sql, qualified=True)
        except duckdb.Error:
            names = {relation.newest for relation in self._relations}
        for relation in self._relations:
            if relation.newest in names:
                relation.refresh(self._connection)

    def _explained(self, error: duckdb.Error) -> str:
        """DuckDB's message in one line, with what there is instead of what was asked for."""
        text = str(error).split("\n\nLINE ")[0].replace("\n", " ").strip()
        if isinstance(error, duckdb.CatalogException) and "Table with name" in text:
            name = text.partition("Table with name ")[2].partition(" ")[0]
            return f"no view is named {name}: there are {', '.join(view.name for view in VIEWS)}"
        if isinstance(error, duckdb.PermissionException):
            return f"{text.partition(': ')[2]}: SQL reads the archive {self._root} and nothing else"
        return text


def _relations(root: Path) -> list[Relation]:
    topics = [
        Relation(base(topic), columns.record_schema(topic.record), root, f"{topic.base_name}/{_FILES}")
        for topic in ALL_TOPICS
    ]
    return [*topics, Relation(DEAD_LETTERS, columns.DEAD_LETTERS, root, f"*{DEAD_LETTER_SUFFIX}/{_FILES}")]


def _settings(root: Path) -> list[str]:
    """What keeps queries from touching anything but the archive's files."""
    return [
        # The archiver replaces the newest file of a partition under its name: nothing of an older one may be kept.
        "enable_external_file_cache = false",
        "parquet_metadata_cache = false",
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "temp_directory = ''",
        f"allowed_directories = [{quoted(f'{root}/')}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ]
