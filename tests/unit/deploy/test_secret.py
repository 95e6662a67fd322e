from pydantic import SecretStr

from deploy.secret import kept_secret, with_secret
from ingest.settings import AuthSettings


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path):
    path = tmp_path / "state" / "secret"
    first = kept_secret(path)
    assert len(first) >= 32
    assert kept_secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["secret"]


def test_a_secret_of_the_user_is_left_alone(tmp_path):
    auth = AuthSettings(secret=SecretStr("mine"))
    assert with_secret(auth, tmp_path) == auth
    assert list(tmp_path.iterdir()) == []
