"""What the archiver counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class ArchiverMetrics:
    """All of them are made on the service's own registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.rows = Counter("forgestream_archiver_rows", "Rows written, by topic.", ["topic"], registry=registry)
        self.flush_s = Histogram(
            "forgestream_archiver_flush_seconds", "Writing the rows of one partition.", registry=registry
        )
        self.buffered = Gauge("forgestream_archiver_buffered_rows", "Rows that are in no file yet.", registry=registry)
        self.lag = Gauge("forgestream_archiver_lag_records", "Records that were not read yet.", registry=registry)
        self.written_count = 0
        """Rows written by this process."""
