import time

import pytest

from ingest.bearer import Bearer, BearerError, mint
from proxy.http.bearers import Bearers

SECRET = "a secret of thirty-two characters"


def test_a_token_expires_also_when_it_is_remembered(monkeypatch):
    bearers = Bearers(SECRET)
    bearer = Bearer(rollout_id="r", attempt=1, group_id="g", exp=int(time.time()) + 60)
    token = mint(bearer, SECRET)
    assert bearers.verify(token) == bearers.verify(token) == bearer
    later = time.time() + 61
    monkeypatch.setattr("proxy.http.bearers.time.time", lambda: later)
    with pytest.raises(BearerError, match="expired"):
        bearers.verify(token)


@pytest.mark.parametrize(
    "token", ["", "x", mint(Bearer(rollout_id="r", attempt=1, group_id="g", exp=2**40), "another secret " * 3)]
)
def test_a_token_that_is_not_ours_is_refused_every_time(token):
    bearers = Bearers(SECRET)
    for _ in range(2):
        with pytest.raises(BearerError):
            bearers.verify(token)
