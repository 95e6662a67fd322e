from pathlib import Path

import pytest

from proxy.rendering.folder import load_model_folder
from proxy.rendering.renderer import Renderer
from tests.support.model_folder import HERMES, PLAIN, make_model_folder


@pytest.fixture(scope="session")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template that knows nothing of tools."""
    return make_model_folder(tmp_path_factory.mktemp("plain"), PLAIN)


@pytest.fixture(scope="session")
def hermes_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template that renders tools and joins consecutive results."""
    return make_model_folder(tmp_path_factory.mktemp("hermes"), HERMES)


@pytest.fixture(scope="session")
def plain(plain_folder: Path) -> Renderer:
    return Renderer(load_model_folder(plain_folder))


@pytest.fixture(scope="session")
def hermes(hermes_folder: Path) -> Renderer:
    return Renderer(load_model_folder(hermes_folder))
