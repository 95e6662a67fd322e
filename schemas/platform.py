"""What the platform says about itself: telemetry.v1 and blobs.v1."""

from typing import Annotated

from schemas.record import Record, doc


class Telemetry(Record, frozen=True, kw_only=True):
    """Gauges of one service at one moment."""

    source: Annotated[str, doc("The service; the key of the record.")] = ""
    at_us: Annotated[int, doc("When they were read, epoch µs.")] = 0
    gauges: Annotated[dict[str, float], doc("Name to value: busy share, queue lengths, lag, groups consumed, …")] = {}
    labels: Annotated[dict[str, str], doc("What the gauges speak of: run, policy, node.")] = {}


class Blob(Record, frozen=True, kw_only=True):
    """Content-addressed bytes: system prompts, tool lists, images, large files."""

    sha256: Annotated[str, doc("Digest of the data in hex; the key of the record.")] = ""
    media_type: Annotated[str, doc("What the data is: text/plain, application/json, image/png, …")] = ""
    data: Annotated[bytes, doc("The bytes.")] = b""
