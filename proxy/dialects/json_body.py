"""JSON bodies from the outside world: every way of being wrong becomes one clear line."""

import re
from typing import TypeVar

import msgspec

from proxy.errors import Problem, RequestError

T = TypeVar("T")

# JavaScript cuts strings between the halves of a character; what is left over is no Unicode.
_LONE_SURROGATE = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The body as the decoder's type. Half characters become U+FFFD.

    Raises:
        RequestError: not JSON, not UTF-8, or not of that type.
    """
    try:
        return _decode(decoder, body)
    except msgspec.ValidationError as error:
        raise RequestError(Problem.INVALID_REQUEST, f"the request has the wrong shape: {error}") from error
    except (msgspec.DecodeError, UnicodeError) as error:
        raise RequestError(Problem.INVALID_REQUEST, f"the body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise RequestError(Problem.INVALID_REQUEST, "the body is nested too deeply") from error


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        mended = _LONE_SURROGATE.sub(rb"\1\\ufffd", body)
        if mended == body:
            raise
    return decoder.decode(mended)
