"""All settings of the system, one section a part, and how they are found.

`forgestream.toml` in the current folder, or the file named with `--config`, then `FORGESTREAM_PROXY__PORT=…`, then
`--set proxy.port=…`; the later wins.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from deploy.layers import Layer, Resolved, environment_layer, file_layer, option_layer, resolve
from ingest.archive.settings import ArchiverSettings
from ingest.assembler.settings import AssemblerSettings
from ingest.kafka.settings import KafkaSettings
from ingest.service.settings import ServiceSettings
from ingest.settings import AuthSettings
from learner.serving.settings import EngineSettings
from learner.settings import LearnerSettings
from proxy.settings import ProxySettings
from rollouts.settings import LauncherSettings

DEFAULT_FILE = Path("forgestream.toml")
FILE_VARIABLE = "FORGESTREAM_CONFIG"


class Settings(BaseModel):
    """Everything that can be set."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    state: Path = Path(".forgestream")
    """Folder of everything that the local stack keeps: log, archive, checkpoints, models, logs."""
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    """The log. Without bootstrap servers, `up` starts a broker of its own."""
    auth: AuthSettings = Field(default_factory=AuthSettings)
    """The secret behind rollout tokens."""
    proxy: ProxySettings = Field(default_factory=ProxySettings)
    """What the harness believes to be its model provider."""
    launcher: LauncherSettings = Field(default_factory=LauncherSettings)
    """Starts and judges rollouts."""
    assembler: AssemblerSettings = Field(default_factory=AssemblerSettings)
    """Completions and life cycle into trajectories."""
    archiver: ArchiverSettings = Field(default_factory=ArchiverSettings)
    """The log into Parquet."""
    learner: LearnerSettings = Field(default_factory=LearnerSettings)
    """Trajectories into policy versions."""
    engine: EngineSettings = Field(default_factory=EngineSettings)
    """Samples tokens from the newest policy version."""


@dataclass(frozen=True)
class Configuration:
    """Resolved settings, and how to make the same ones in another process."""

    resolved: Resolved[Settings]
    file: Path | None
    assignments: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def settings(self) -> Settings:
        """The settings themselves."""
        return self.resolved.settings

    def options(self) -> list[str]:
        """Options of the `forgestream` command that, in the same environment, give these settings."""
        file = ["--config", str(self.file)] if self.file else []
        return [*file, *(part for text in self.assignments for part in ("--set", text))]

    def set(self, *assignments: str) -> "Configuration":
        """The same with further settings, which win."""
        return load(self.file, [*self.assignments, *assignments], self.environment)


def load(
    file: Path | None = None, assignments: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Configuration:
    """The settings of a command.

    Raises:
        ConfigError: a file, variable or option that means nothing or does not fit; one line each.
    """
    environment = os.environ if environment is None else environment
    path = _file(file, environment)
    layers = [file_layer(path)] if path else []
    layers += [environment_layer(environment, frozenset({FILE_VARIABLE})), option_layer(assignments)]
    # first without, then with what follows from other settings and was not set itself
    follows = _follows(resolve(Settings, layers).settings)
    return Configuration(resolve(Settings, [follows, *layers]), file, tuple(assignments), environment)


def _file(file: Path | None, environment: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if named := environment.get(FILE_VARIABLE):
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def _follows(settings: Settings) -> Layer:
    """Where a default depends on another section: the addresses of parts, and the folders inside the state folder."""
    state = settings.state
    values: dict[tuple[str, ...], Any] = {
        ("launcher", "state_dir"): state,
        ("launcher", "proxy_url"): url(settings.proxy),
        ("learner", "runs"): state / "runs",
        ("archiver", "root"): state / "archive",
        ("proxy", "model"): settings.engine.model,
        ("proxy", "engines"): (url(settings.engine),),
    }
    return Layer(values, dict.fromkeys(values, "other settings"))


def url(section: ServiceSettings) -> str:
    """The address of a service for a client on this machine."""
    host = "127.0.0.1" if section.host in ("0.0.0.0", "::") else section.host
    return f"http://{host}:{section.port}"
