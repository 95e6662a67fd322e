"""Errors of SQL over the archive.

ForgestreamError
└── AnalyticsError
    ├── NoArchive          the folder does not exist
    └── QueryError         a query that cannot be answered
        ├── NotReadOnly    it would write, or is several statements
        └── UnknownQuery   no named query of that name
"""

from schemas import ForgestreamError


class AnalyticsError(ForgestreamError):
    """Something about SQL over the archive."""


class NoArchive(AnalyticsError):
    """There is no archive at a path."""


class QueryError(AnalyticsError):
    """A query that cannot be answered."""

    exit_status = 2


class NotReadOnly(QueryError):
    """A statement that is not one SELECT."""


class UnknownQuery(QueryError):
    """No named query of that name."""
