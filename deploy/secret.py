"""The secret behind rollout tokens: made once a state folder, readable by its owner only."""

import os
import secrets
from pathlib import Path

from pydantic import SecretStr

from deploy.errors import DeployError
from ingest.settings import AuthSettings

_BYTES = 32


def with_secret(auth: AuthSettings, state: Path) -> AuthSettings:
    """The settings with a secret in them: their own, or the one kept in the state folder."""
    return auth if auth.secret.get_secret_value() else AuthSettings(secret=SecretStr(kept_secret(state / "secret")))


def kept_secret(path: Path) -> str:
    """The secret in a file, which is made when it is not there. Two processes that start together agree on one."""
    try:
        if path.exists():
            return path.read_text().strip()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(_BYTES))
        try:
            os.link(part, path)  # fails where the file is there already: the first one wins
        except FileExistsError:
            pass
        finally:
            part.unlink()
        return path.read_text().strip()
    except OSError as error:
        raise DeployError(f"secret file {path} cannot be used: {error}") from error
