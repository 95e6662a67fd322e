"""SQL over the archive: documented views, named queries, and nothing that writes.

`open_archive(path)` gives an `Archive` with `query`, `named`, `views` and `queries`.
"""

from ingest.analytics.archive import Archive, Result, ViewInfo, open_archive
from ingest.analytics.errors import QueryError
from ingest.analytics.queries import NAMED_QUERIES, NamedQuery

__all__ = ["NAMED_QUERIES", "Archive", "NamedQuery", "QueryError", "Result", "ViewInfo", "open_archive"]
