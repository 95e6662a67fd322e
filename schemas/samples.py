"""A record of any type in which no field has its default: what golden bytes and round-trip tests are made of."""

import types
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from schemas.record import Record, WireEnum

R = TypeVar("R", bound=Record)


def sample(kind: type[R]) -> R:
    """A full record; the same one at every call."""
    hints = get_type_hints(kind)
    return kind(**{f.name: _value(hints[f.name], f.name) for f in msgspec.structs.fields(kind)})


def _value(kind: Any, name: str) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(a for a in get_args(kind) if a is not type(None))
    if get_origin(kind) is list:
        return [_value(get_args(kind)[0], name)]
    if get_origin(kind) is dict:
        return {f"{name} key": _value(get_args(kind)[1], name)}
    if issubclass(kind, WireEnum):
        return list(kind)[-1]
    if issubclass(kind, Record):
        return sample(kind)
    number = 1 + sum(name.encode())
    return {str: f"{name} ä", bytes: name.encode() + b"\0\xff", bool: True, int: number, float: number / 4}[kind]
