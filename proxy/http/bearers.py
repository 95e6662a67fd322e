"""Rollout tokens, verified once and then remembered: a signature costs more than the rest of a small call's checks."""

import time
from collections import OrderedDict

from ingest.bearer import Bearer, BearerError, verify

_REMEMBERED = 20_000


class Bearers:
    """Verifies tokens with the shared secret."""

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self._known: OrderedDict[str, Bearer] = OrderedDict()

    def verify(self, token: str) -> Bearer:
        """The bearer inside a token.

        Raises:
            BearerError: not a token of ours, altered, or expired.
        """
        bearer = self._known.get(token)
        if bearer is None:
            bearer = self._known[token] = verify(token, self._secret)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        elif bearer.exp <= time.time():
            del self._known[token]
            raise BearerError("rollout token refused: it has expired")
        return bearer
