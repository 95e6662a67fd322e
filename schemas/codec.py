"""Record ↔ bytes in Confluent framing: a zero byte, the schema's id in four big-endian bytes, the Avro body.

Without a registry the id is made from the topic's number and the schema's version, so any process can read any
record that was ever released. Source of the framing:
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

import io
import json
import struct
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import fastavro
import msgspec

from schemas.avro import avro_schema
from schemas.errors import SchemaError
from schemas.record import Record
from schemas.topics import ALL_TOPICS, Topic

R = TypeVar("R", bound=Record)

HISTORY = Path(__file__).parent / "history"
_FRAME = struct.Struct(">bI")
_TOPIC_OF_RECORD = {topic.record: topic for topic in ALL_TOPICS}


def encode(record: Record) -> bytes:
    """The record in its newest released schema.

    Raises:
        SchemaError: the record type has no topic, or a value does not fit its field.
    """
    topic = _topic_of(type(record))
    version = latest_version(topic)
    body = io.BytesIO()
    body.write(_FRAME.pack(0, schema_id(topic, version)))
    try:
        fastavro.schemaless_writer(body, _released(topic, version), msgspec.to_builtins(record, builtin_types=(bytes,)))
    except (ValueError, TypeError, AttributeError) as error:
        raise SchemaError(f"{topic.base_name}: cannot encode {type(record).__name__}: {error}") from error
    return body.getvalue()


def decode(kind: type[R], data: bytes) -> R:
    """A record of type `kind` from bytes in any of its released schemas.

    Raises:
        SchemaError: not framed, of another topic, newer than this reader, or cut.
    """
    topic = _topic_of(kind)
    if len(data) < _FRAME.size or data[0] != 0:
        raise SchemaError(f"{topic.base_name}: {len(data)} bytes without the Avro frame (00 and a 4-byte schema id)")
    _, identifier = _FRAME.unpack_from(data)
    number, version = identifier >> 8, identifier & 0xFF
    if number != topic.number:
        raise SchemaError(f"{topic.base_name}: schema id {identifier:#x} belongs to another topic")
    if not 1 <= version <= latest_version(topic):
        raise SchemaError(
            f"{topic.base_name}: schema version {version} is newer than this reader "
            f"(knows up to {latest_version(topic)}): update forgestream"
        )
    body = io.BytesIO(data)
    body.seek(_FRAME.size)
    try:
        value: Any = fastavro.schemaless_reader(body, _released(topic, version), _reader_schema(topic, version))
        return msgspec.convert(value, kind)
    except Exception as error:  # fastavro raises a different type for each way in which bytes can be wrong
        raise SchemaError(f"{topic.base_name}: unreadable {kind.__name__}: {error!r}") from error


def schema_id(topic: Topic, version: int) -> int:
    """The id on the wire: the topic's number, then the schema's version in the low byte."""
    return topic.number << 8 | version


def history_folder(topic: Topic) -> Path:
    """Where the topic's released schemas lie: `v1.avsc`, `v2.avsc`, …"""
    return HISTORY / topic.base_name


@cache
def latest_version(topic: Topic) -> int:
    """The newest released schema version, from 1; 0 when none was released."""
    return len(list(history_folder(topic).glob("v*.avsc")))


def released_schema(topic: Topic, version: int) -> dict[str, Any]:
    """A released schema as it was written down."""
    return json.loads((history_folder(topic) / f"v{version}.avsc").read_text())


@cache
def _released(topic: Topic, version: int) -> Any:
    return fastavro.parse_schema(released_schema(topic, version))


@cache
def _reader_schema(topic: Topic, version: int) -> Any:
    """The schema to resolve to, or None where the writer's is already the newest (which reads faster)."""
    return None if version == latest_version(topic) else fastavro.parse_schema(avro_schema(topic.record))


def _topic_of(kind: type[Record]) -> Topic:
    try:
        return _TOPIC_OF_RECORD[kind]
    except KeyError:
        raise SchemaError(f"{kind.__name__} has no topic of its own") from None
