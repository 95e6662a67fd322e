"""The small models that packages ship, by name, as folders under `.forgestream/models`."""

import subprocess
import sys
from pathlib import Path

from deploy.errors import ConfigError, DeployError

SHIPPED = ("smollm2", "tiny")
MODELS = Path(".forgestream/models")


def model_folder(name_or_path: str, models: Path = MODELS) -> Path:
    """The folder of a model; a shipped one is made if it is not there, which is told on standard error.

    Raises:
        ConfigError: neither a shipped model nor a folder with a model in it.
        DeployError: it could not be made.
    """
    if name_or_path in SHIPPED:
        folder = models / name_or_path
        if not (folder / "config.json").is_file():
            make_model(name_or_path, folder)
        return folder
    folder = Path(name_or_path)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model {name_or_path}: no folder with a config.json; give one in Hugging Face format, "
            f"or one of the shipped models: {', '.join(SHIPPED)}"
        )
    return folder


def make_model(name: str, folder: Path) -> None:
    """Make a shipped model's folder, in a process of its own: it needs torch, which commands do without."""
    status = subprocess.run([sys.executable, "-m", "learner.models", name, str(folder)], check=False).returncode
    if status:
        raise DeployError(f"model {name} could not be made in {folder} (status {status}): the lines above say why")
