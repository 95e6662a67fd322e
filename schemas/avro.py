"""Struct → Avro schema. Source of the mapping: Apache Avro 1.12 specification, https://avro.apache.org/docs/1.12.0/."""

import types
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from schemas.record import Record, WireEnum

NAMESPACE = "forgestream"
_PRIMITIVES = {str: "string", int: "long", float: "double", bool: "boolean", bytes: "bytes"}


def avro_schema(record: type[Record]) -> dict[str, Any]:
    """The Avro schema of a record type, as plain JSON values. A named type is spelled out where it first occurs."""
    return _record(record, set())


def _record(record: type[Record], seen: set[str]) -> Any:
    if record.__name__ in seen:
        return f"{NAMESPACE}.{record.__name__}"
    seen.add(record.__name__)
    hints = get_type_hints(record, include_extras=True)
    fields = [_field(field, hints[field.name], seen) for field in msgspec.structs.fields(record)]
    return {
        "type": "record",
        "name": record.__name__,
        "namespace": NAMESPACE,
        "doc": (record.__doc__ or "").strip().split("\n")[0],
        "fields": fields,
    }


def _field(field: msgspec.structs.FieldInfo, hint: Any, seen: set[str]) -> dict[str, Any]:
    annotated = get_origin(hint) is Annotated
    kind = get_args(hint)[0] if annotated else hint
    description = next((m.description for m in get_args(hint)[1:] if isinstance(m, msgspec.Meta)), None)
    if not description:
        raise TypeError(f"field {field.name} has no doc")
    default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if default is msgspec.NODEFAULT:
        raise TypeError(f"field {field.name} has no default")
    return {"name": field.name, "type": _type(kind, seen), "default": _default(default), "doc": description}


def _type(kind: Any, seen: set[str]) -> Any:
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (inner,) = (a for a in args if a is not type(None))
        return ["null", _type(inner, seen)]
    if origin is list:
        return {"type": "array", "items": _type(args[0], seen)}
    if origin is dict:
        return {"type": "map", "values": _type(args[1], seen)}
    if isinstance(kind, type) and issubclass(kind, WireEnum):
        return _enum(kind, seen)
    if isinstance(kind, type) and issubclass(kind, Record):
        return _record(kind, seen)
    raise TypeError(f"no Avro type for {kind!r}")


def _enum(kind: type[WireEnum], seen: set[str]) -> Any:
    if kind.__name__ in seen:
        return f"{NAMESPACE}.{kind.__name__}"
    seen.add(kind.__name__)
    symbols = [member.value for member in kind]
    return {
        "type": "enum",
        "name": kind.__name__,
        "namespace": NAMESPACE,
        "doc": (kind.__doc__ or "").strip().split("\n")[0],
        "symbols": symbols,
        "default": symbols[0],
    }


def _default(value: Any) -> Any:
    if isinstance(value, Record):
        return {f.name: _default(getattr(value, f.name)) for f in msgspec.structs.fields(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("latin-1")  # Avro writes default bytes as code points 0 to 255
    return value
