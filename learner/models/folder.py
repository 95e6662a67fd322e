"""A model folder appears whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from learner.models.errors import ModelError

MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def make_once(folder: Path, make: Callable[[Path], None]) -> bool:
    """Fills a temporary folder beside `folder` with `make` and renames it into place.

    Returns:
        True: made now. False: it was there already, whole, and was left alone.

    Raises:
        ModelError: `folder` is something else than a model folder, or the disk refuses.
    """
    if is_complete(folder):
        return False
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder} exists and is no model folder: remove it or name another one")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise ModelError(f"cannot write beside {folder}: {error.strerror}") from error
    try:
        make(scratch)
        for path in scratch.iterdir():
            path.chmod(0o644)  # mkdtemp and some writers leave files for their owner alone
        scratch.chmod(0o755)
        scratch.rename(folder)
    except OSError as error:
        if is_complete(folder):  # another process was faster
            return False
        raise ModelError(f"cannot write {folder}: {os.strerror(error.errno) if error.errno else error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def is_complete(folder: Path) -> bool:
    """Whether every file of a model folder is there."""
    return all((folder / name).is_file() for name in MODEL_FILES)


def write_json(path: Path, value: Any) -> None:
    """One of the folder's JSON files, in the layout that transformers uses."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
