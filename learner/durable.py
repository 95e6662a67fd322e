"""Folders that appear whole and on disk, or not at all."""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from learner.errors import RunFolderError

_SCRATCH = re.compile(r"\..*\.partial")


@contextmanager
def durable_folder(final: Path) -> Iterator[Path]:
    """Fill the folder that is yielded; when the block ends, it is synced and renamed to `final`.

    After a crash, at whatever moment, `final` exists with everything in it or does not exist.

    Raises:
        RunFolderError: `final` exists already, or the disk refuses.
    """
    scratch = final.parent / f".{final.name}.partial"
    try:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            yield scratch
            _sync_tree(scratch)
            scratch.rename(final)
            _sync(final.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise RunFolderError(f"cannot write {final}: {_advice(error)}") from error


def sweep(folder: Path) -> None:
    """Remove what writers that died left behind."""
    if folder.is_dir():
        for path in folder.iterdir():
            if _SCRATCH.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder: one process of this machine at a time. The lock ends with the process, however it ends.

    Raises:
        RunFolderError: another process holds it, or the disk refuses.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise RunFolderError(f"cannot write {folder}: {_advice(error)}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunFolderError(
                f"another learner works in {folder}: stop it, or give this one a run_id of its own"
            ) from None
        yield


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            _sync(Path(parent) / name)
        _sync(Path(parent))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _advice(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full: make room and start again, nothing is lost"
    return error.strerror or str(error)
