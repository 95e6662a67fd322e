"""Token ids, masks and log-probabilities as bytes: little-endian int32, uint8, float32.

5 to 20 times cheaper on the wire and in CPU than Avro arrays of the same numbers.
"""

import array
import sys
from collections.abc import Iterable

from schemas.errors import SchemaError


def pack_ids(ids: Iterable[int]) -> bytes:
    """Token ids → int32 LE."""
    return _pack("i", ids)


def unpack_ids(data: bytes) -> list[int]:
    """int32 LE → token ids.

    Raises:
        SchemaError: the length is no multiple of four.
    """
    return _unpack("i", data).tolist()


def pack_mask(mask: Iterable[int]) -> bytes:
    """0s and 1s → uint8."""
    return bytes(mask)


def unpack_mask(data: bytes) -> list[int]:
    """uint8 → 0s and 1s."""
    return list(data)


def pack_floats(values: Iterable[float]) -> bytes:
    """Log-probabilities → float32 LE."""
    return _pack("f", values)


def unpack_floats(data: bytes) -> list[float]:
    """float32 LE → log-probabilities.

    Raises:
        SchemaError: the length is no multiple of four.
    """
    return _unpack("f", data).tolist()


def _pack(code: str, values: Iterable[float]) -> bytes:
    packed = array.array(code, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpack(code: str, data: bytes) -> "array.array":
    if len(data) % 4:
        raise SchemaError(f"{len(data)} bytes are no whole number of 4-byte values")
    values = array.array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
