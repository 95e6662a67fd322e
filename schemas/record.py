"""The base of every record on a topic, and the two small tools its fields are declared with.

The structs in this folder are the single source of the wire contract: `schemas.avro` derives the Avro schema
from them, `schemas/history/` keeps every schema that was ever released.
"""

from enum import StrEnum

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A value on a topic, or a part of one. Every field has a default, so that old and new readers agree."""


class WireEnum(StrEnum):
    """An Avro enum. The first member is UNKNOWN: what a reader sees for a symbol that it does not know yet."""


def doc(text: str) -> msgspec.Meta:
    """The field's `doc` in Avro, in the topic reference and in the SQL views."""
    return msgspec.Meta(description=text)
