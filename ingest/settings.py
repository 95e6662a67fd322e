"""Settings that several services share."""

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class AuthSettings(BaseModel):
    """The secret with which the launcher signs rollout tokens and the proxy verifies them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    secret: SecretStr = Field(default=SecretStr(""))
    """Shared secret, 32 characters or more. Empty: `forgestream` makes one and keeps it in the state folder."""
