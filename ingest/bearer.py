"""The signed token with which a rollout attempt speaks to the proxy.

The launcher mints it, the proxy verifies it with the shared secret alone: any replica, no look-up. It travels as API
key or as the path prefix `/r/<token>`; every harness accepts one of the two. JWT as of RFC 7519, HS256.
"""

import jwt
import msgspec

from schemas import ForgestreamError, Limits, Sampling

_ALGORITHM = "HS256"


class BearerError(ForgestreamError):
    """A bearer that is unknown, altered or expired."""


class Bearer(msgspec.Struct, frozen=True, kw_only=True):
    """What the proxy must know of a rollout attempt."""

    rollout_id: str
    attempt: int
    group_id: str
    policy_id: str = "policy"
    evaluation: bool = False
    sampling: Sampling = Sampling()
    limits: Limits = Limits()
    exp: int = 0
    """Expiry, epoch seconds (the registered JWT claim)."""


def mint(bearer: Bearer, secret: str) -> str:
    """The bearer as a compact signed token; only letters, digits, `-`, `_` and `.`."""
    return jwt.encode(msgspec.to_builtins(bearer), secret, algorithm=_ALGORITHM)


def verify(token: str, secret: str) -> Bearer:
    """The bearer inside a token.

    Raises:
        BearerError: not a token of ours, altered, or expired.
    """
    try:
        claims = jwt.decode(token, secret, algorithms=[_ALGORITHM], options={"require": ["exp"]})
        return msgspec.convert(claims, Bearer)
    except (jwt.InvalidTokenError, msgspec.ValidationError) as error:
        raise BearerError(f"rollout token refused: {error}") from error
