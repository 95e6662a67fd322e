from pathlib import Path

import pytest

from tests.support.model_folder import HERMES, PLAIN, make_model_folder


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template that knows nothing of tools, like SmolLM2's."""
    return make_model_folder(tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="session")
def hermes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template that renders tools, like Qwen2.5's."""
    return make_model_folder(tmp_path_factory.mktemp("hermes"), HERMES)
