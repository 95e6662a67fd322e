"""The state folder of a demo: fresh for each one, and the only thing that is ever removed."""

import shutil
from pathlib import Path

from deploy.errors import DeployError
from deploy.local.kafka import stop_running
from deploy.local.statefile import hold_state

_SIGN = "made-by-forgestream-demo"


def fresh_folder(folder: Path) -> None:
    """Make the folder empty.

    Raises:
        AlreadyRunning: a demo runs there.
        DeployError: something that no demo made is there.
    """
    if folder.is_symlink() or (folder.exists() and not (folder / _SIGN).is_file()):
        raise DeployError(f"{folder} was not made by a demo: remove it yourself, or choose another with --state")
    try:
        if folder.exists():
            with hold_state(folder):
                stop_running(folder / "broker")
                _empty(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _SIGN).touch()
    except OSError as error:
        raise DeployError(f"{folder} cannot be made fresh: {error}") from error


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in (_SIGN, "run"):
            continue  # `run` holds the lock that is held now
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
