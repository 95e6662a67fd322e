"""Asks the archive in SQL."""

from pathlib import Path
from typing import Any


def ask_archive(root: Path, sql: str) -> list[dict[str, Any]]:
    """Rows of one query over the archive's views."""
    import duckdb

    con = duckdb.connect()
    for name in ("trajectories", "steps", "completions"):
        con.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet('{root}/{name}.v1/**/*.parquet')")
    return con.sql(sql).to_arrow_table().to_pylist()
