"""Records → Arrow columns.

The columns are derived from the records: nested records stay structs, maps stay maps, JSON texts stay texts. Token
ids, masks and log-probabilities become lists, which SQL can count, slice and sum. Every row says where it came from.
"""

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pyarrow as pa

from schemas import Record

if TYPE_CHECKING:  # SQL needs the columns, but no Kafka client
    from ingest.kafka.consumer import Received

PACKED: dict[str, pa.DataType] = {
    "token_ids": pa.int32(),
    "prompt_token_ids": pa.int32(),
    "completion_token_ids": pa.int32(),
    "rollout_logprobs": pa.float32(),
    "loss_mask": pa.uint8(),
}
"""Fields of type bytes that hold numbers, little-endian; all other bytes stay as they are."""

ORIGIN = pa.schema(
    [
        pa.field("_key", pa.string()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us")),
    ]
)
"""The columns that every file has: the record's key, its place in the log, and the log's time stamp (UTC)."""

DEAD_LETTERS = pa.schema(
    [
        pa.field("origin_topic", pa.string()),
        pa.field("origin_partition", pa.int32()),
        pa.field("origin_offset", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        *ORIGIN,
    ]
)
"""The columns of dead letters. A record that several consumers met is there several times."""

_PLAIN = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}


@dataclass(frozen=True)
class Column:
    """A column's type, and how values of the record's field become it."""

    type: pa.DataType
    build: Callable[[Sequence[Any]], pa.Array]


def record_schema(record: type[Record]) -> pa.Schema:
    """The columns of a topic's files."""
    fields = [pa.field(name, column.type) for name, column in _columns(record).items()]
    return pa.schema([*fields, *ORIGIN])


def to_table(record: type[Record], rows: "Sequence[Received]") -> pa.Table:
    """Records of one topic as a table with `record_schema(record)`."""
    values = [row.record for row in rows]
    arrays = [column.build([getattr(v, name) for v in values]) for name, column in _columns(record).items()]
    return pa.Table.from_arrays([*arrays, *origin_arrays(rows)], schema=record_schema(record))


def origin_arrays(rows: Sequence[Any]) -> list[pa.Array]:
    """The columns of ORIGIN, from anything that has key, partition, offset and at_us."""
    return [
        pa.array([row.key for row in rows], pa.string()),
        pa.array([row.partition for row in rows], pa.int32()),
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.at_us for row in rows], pa.timestamp("us")),
    ]


@cache
def _columns(record: type[Record]) -> dict[str, Column]:
    hints = get_type_hints(record)
    return {field.name: _column(field.name, hints[field.name]) for field in msgspec.structs.fields(record)}


def _column(name: str, hint: Any) -> Column:
    if name in PACKED:
        return _packed(PACKED[name])
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (hint,) = (arg for arg in args if arg is not type(None))
        if isinstance(hint, type) and issubclass(hint, Record):
            raise TypeError(f"field {name}: an optional record has no column yet")
        return _column(name, hint)
    if origin is list and isinstance(args[0], type) and issubclass(args[0], Record):
        return _records(args[0])
    if origin is list:
        return _plain(pa.list_(_PLAIN[args[0]]))
    if origin is dict:
        return _mapping(pa.map_(_PLAIN[args[0]], _PLAIN[args[1]]))
    if isinstance(hint, type) and issubclass(hint, Record):
        return _struct(hint)
    return _plain(_PLAIN[str if issubclass(hint, str) else hint])


def _plain(kind: pa.DataType) -> Column:
    return Column(kind, lambda values: pa.array(values, kind))


def _mapping(kind: pa.DataType) -> Column:
    return Column(kind, lambda values: pa.array([list(value.items()) for value in values], kind))


def _packed(item: pa.DataType) -> Column:
    """Bytes of whole items become a list without a loop over them; other bytes are no numbers and become null."""
    size = item.bit_width // 8

    def build(values: Sequence[bytes]) -> pa.Array:
        whole = [None if len(value) % size else value for value in values]
        data = b"".join(value for value in whole if value)
        offsets = _offsets(len(value or b"") // size for value in whole)
        numbers = pa.Array.from_buffers(item, len(data) // size, [None, pa.py_buffer(data)])
        mask = pa.array([value is None for value in whole]) if None in whole else None
        return pa.ListArray.from_arrays(offsets, numbers, mask=mask)

    return Column(pa.list_(item), build)


def _struct(record: type[Record]) -> Column:
    columns = _columns(record)
    fields = [pa.field(name, column.type) for name, column in columns.items()]

    def build(values: Sequence[Record]) -> pa.Array:
        arrays = [column.build([getattr(v, name) for v in values]) for name, column in columns.items()]
        return pa.StructArray.from_arrays(arrays, fields=fields)

    return Column(pa.struct(fields), build)


def _records(record: type[Record]) -> Column:
    item = _struct(record)

    def build(values: Sequence[Sequence[Record]]) -> pa.Array:
        flat = list(chain.from_iterable(values))
        return pa.ListArray.from_arrays(_offsets(map(len, values)), item.build(flat))

    return Column(pa.list_(item.type), build)


def _offsets(lengths: Any) -> pa.Array:
    return pa.array(accumulate(lengths, initial=0), pa.int32())
