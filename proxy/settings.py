"""Settings of the proxy."""

from pathlib import Path

from pydantic import Field

from ingest.service.settings import ServiceSettings


class ProxySettings(ServiceSettings):
    """How the proxy serves harnesses and reaches the policy's engines."""

    port: int = Field(default=8700, ge=0, le=65535)
    """Port of the model API, and of `/livez`, `/readyz` and `/metrics`; 0 takes any free one."""
    model: Path | None = None
    """Model folder whose tokenizer.json, tokenizer_config.json and chat_template.jinja render prompts."""
    engines: tuple[str, ...] = ("http://127.0.0.1:8701",)
    """Base addresses of the policy's engines; a rollout stays on one of them."""
    context_tokens: int = Field(default=0, ge=0)
    """Prompt and completion together; 0 takes what the model's config.json says."""
    body_limit_bytes: int = Field(default=64 * 2**20, gt=0)
    """Largest request body; a larger one is answered with 413."""
    engine_retry_s: float = Field(default=120.0, ge=0)
    """How long an engine may be away, without a token, before a call fails."""
    engine_silence_s: float = Field(default=600.0, gt=0)
    """A stream of an engine that says nothing for so long is taken for dead and begun again."""
    keep_alive_s: float = Field(default=5.0, gt=0)
    """A streamed reply says something at least this often."""
    delivery_timeout_s: float = Field(default=60.0, gt=0)
    """How long the log may take to acknowledge a completion before its call fails."""
    rollout_idle_s: float = Field(default=7200.0, gt=0)
    """A rollout that made no call for so long is forgotten."""
    chain_memory_bytes: int = Field(default=512 * 2**20, gt=0)
    """Memory for recorded conversations; beyond it the longest unused are rendered anew when they go on."""
