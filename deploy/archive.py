"""Asks the archive in SQL, for rows as plain dicts."""

from pathlib import Path
from typing import Any

from ingest.analytics import open_archive


def ask_archive(root: Path, sql: str) -> list[dict[str, Any]]:
    """Rows of one query over the archive's views.

    Raises:
        AnalyticsError: there is no archive, or the query cannot be answered.
    """
    with open_archive(root) as archive:
        columns, rows = archive.query(sql)
        return [dict(zip(columns, row, strict=True)) for row in rows]
