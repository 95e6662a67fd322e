"""Settings of the engine service. Imports no torch: every command reads them."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ingest.service.settings import ServiceSettings

_FROZEN = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EmbeddedSettings(BaseModel):
    """Only for the embedded engine."""

    model_config = _FROZEN

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; `auto` takes a GPU where there is one."""
    step_tokens: int = Field(default=512, ge=16)
    """Most tokens that one step computes. Prompts are taken in pieces of this size, so that running requests go on
    and a weight update never waits long."""
    prompt_cache_tokens: int = Field(default=32_768, ge=0)
    """Tokens of finished requests whose keys and values are kept, for the next turn and for equal prompts; 0 is off."""


class VllmSettings(BaseModel):
    """Only for vLLM."""

    model_config = _FROZEN

    python: Path = Path(".venv-vllm/bin/python")
    """The interpreter of the environment that vLLM is installed in."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "float32"
    """Type that vLLM computes in. float32 agrees best with the learner; `auto` is right on a GPU."""
    cpu_cache_gib: int = Field(default=1, ge=1)
    """Memory for keys and values of the CPU build."""
    arguments: tuple[str, ...] = ()
    """Further arguments for vLLM's server, as on its command line."""
    start_timeout_s: float = Field(default=600.0, gt=0)
    """How long it may take until it answers."""


class EngineSettings(ServiceSettings):
    """The engine that samples tokens, and the follower beside it."""

    port: int = Field(default=8701, ge=0, le=65535)
    """Port of the token API, and of `/livez`, `/readyz` and `/metrics`."""
    kind: Literal["embedded", "vllm"] = "embedded"
    """Which engine: `embedded` needs nothing but torch, `vllm` is for production."""
    model: Path = Path(".forgestream/models/smollm2")
    """Model folder of the base model, version 0."""
    policy_id: str = Field(default="policy", pattern=r"^[^@]+$")
    """The policy that is followed; also the model's name on the API."""
    context_tokens: int = Field(default=0, ge=0)
    """Most tokens of prompt and completion together; 0 takes the model's own limit."""
    max_running: int = Field(default=16, ge=1)
    """Requests that are sampled at the same time; more wait."""
    threads: int = Field(default=1, ge=1)
    """Threads of one computation. More than there are free cores makes it many times slower."""
    embedded: EmbeddedSettings = Field(default_factory=EmbeddedSettings)
    """Only for the embedded engine."""
    vllm: VllmSettings = Field(default_factory=VllmSettings)
    """Only for vLLM."""
