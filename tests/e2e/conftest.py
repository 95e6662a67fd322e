"""Models for the stacks under test."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack import ROOT

MODELS = ROOT / ".forgestream" / "models"


@pytest.fixture(scope="session")
def model_folder() -> Callable[[str], Path]:
    """The folder of a shipped model; made when it is missing."""

    def make(name: str) -> Path:
        folder = MODELS / name
        subprocess.run([sys.executable, "-m", "learner.models", name, str(folder)], cwd=ROOT, check=True)
        return folder

    return make
