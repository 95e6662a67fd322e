"""The tiny model's folder."""

from pathlib import Path

import pytest

from learner.models.folder import make_once
from learner.models.tiny import make


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 140,000 parameters."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    make_once(folder, make)
    return folder
