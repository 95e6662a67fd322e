"""The folders of local rollout attempts. Blocking: called in threads."""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from rollouts.errors import RuntimeFault
from schemas import TaskFile

_OUT_FILE_LIMIT_BYTES = 4 * 1024 * 1024
_OUT_LIMIT_FILES = 64


def state_mark(state: Path) -> str:
    """A short name of a state folder, the same at every start."""
    return hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:16]


def make_attempt(root: Path, home_files: Mapping[str, bytes], workspace_files: Iterable[TaskFile]) -> None:
    """Make an attempt's folders anew, with the files that its harness finds.

    Raises:
        RuntimeFault: the disk is full or not writable.
    """
    try:
        remove(root)
        for name in ("workspace", "home", "out"):
            (root / name).mkdir(parents=True)
        for path, content in home_files.items():
            _write(root / "home", TaskFile(path=path, content=content))
        for file in workspace_files:
            _write(root / "workspace", file)
    except OSError as error:
        raise RuntimeFault(f"cannot prepare {root}: {error}") from error


def copy_workspace(source: Path, target: Path, files: Iterable[TaskFile]) -> None:
    """Copy a workspace without devices, sockets and pipes, then lay `files` over it.

    Links are copied as links and never followed, and a link that stands where a file is to be laid is replaced:
    the harness that left them must not lead us out of the copy.

    Raises:
        RuntimeFault: the disk is full or not writable.
    """
    try:
        remove(target)
        shutil.copytree(source, target, symlinks=True, ignore=_special_files)
        for file in files:
            _write(target, file)
    except (OSError, shutil.Error) as error:
        raise RuntimeFault(f"cannot copy the workspace to {target}: {error}") from error


def read_out(folder: Path) -> dict[str, bytes]:
    """The plain files that a harness left in its `out` folder: at most 64, of at most 4 MiB each."""
    found: dict[str, bytes] = {}
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            if len(found) < _OUT_LIMIT_FILES and not entry.is_symlink() and entry.is_file():
                with entry.open("rb") as file:
                    content = file.read(_OUT_FILE_LIMIT_BYTES + 1)
                if len(content) <= _OUT_FILE_LIMIT_BYTES:
                    found[entry.name] = content
    return found


def folder_bytes(root: Path) -> int:
    """Bytes on disk below a folder; links are not followed."""
    total, open_ = 0, [os.fspath(root)]
    while open_:
        with suppress(OSError), os.scandir(open_.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        open_.append(entry.path)
    return total


def remove(root: Path) -> None:
    """Delete a folder, also one whose permissions a harness took away. Nothing happens when there is none."""
    if root.is_symlink():
        root.unlink()
    elif root.exists():
        try:
            shutil.rmtree(root)
        except PermissionError:
            for folder, _folders, _files in os.walk(root):  # top down: each is opened before it is entered
                Path(folder).chmod(0o700)
            shutil.rmtree(root)


def _write(root: Path, file: TaskFile) -> None:
    target = root
    for part in Path(file.path).parts:
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            target.unlink()
        target.mkdir(exist_ok=True)
        target = target / part
    if target.is_symlink() or target.is_file():
        target.unlink()
    target.write_bytes(file.content or b"")
    if file.executable:
        target.chmod(0o755)


def _special_files(folder: str, names: list[str]) -> set[str]:
    def special(name: str) -> bool:
        mode = os.lstat(os.path.join(folder, name)).st_mode  # noqa: PTH118 - copytree speaks in strings
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))

    return {name for name in names if special(name)}
