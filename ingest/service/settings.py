"""Settings that every service has."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ServiceSettings(BaseModel):
    """Where a service answers `/livez`, `/readyz` and `/metrics`; the proxy and the engine do beside their API."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(ge=0, le=65535)
    """Port to listen on; 0 takes any free one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe events that are logged."""
