"""Installs a pinned npm package into a folder of its own, whole or not at all."""

import asyncio
import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from rollouts.errors import HarnessMissing

_PINS = ("package.json", "package-lock.json")
_DONE = ".installed"
_OUTPUT_LINES = 5


async def npm_install(pins: Path, target: Path) -> None:
    """Make `target` hold what `pins`/package-lock.json names; nothing is done when it does already.

    `npm ci --ignore-scripts` checks every package against its digest in the lock file and runs no code of theirs. It
    works in a folder beside the target, which is then renamed: a kill in the midst leaves nothing half done.

    Raises:
        HarnessMissing: no npm, no network, or a package that differs from its digest.
    """
    digest = _digest(pins)
    with suppress(OSError):
        if (target / _DONE).read_text() == digest:
            return
    npm = shutil.which("npm")
    if npm is None:
        raise HarnessMissing("npm is not on PATH: install Node.js 20 or newer with npm")
    work = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        await asyncio.to_thread(_stage, pins, work)
        await _npm_ci(npm, work)
        (work / _DONE).write_text(digest)
        await asyncio.to_thread(_replace, work, target)
    except OSError as error:
        raise HarnessMissing(f"cannot install into {target}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


async def _npm_ci(npm: str, folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error",
        cwd=folder, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        await process.wait()
        raise
    if process.returncode != 0:
        last = " | ".join(output.decode(errors="replace").strip().splitlines()[:_OUTPUT_LINES])
        raise HarnessMissing(f"npm ci failed with status {process.returncode} in {folder.name}: {last}")


def _digest(pins: Path) -> str:
    return hashlib.sha256(b"".join((pins / name).read_bytes() for name in _PINS)).hexdigest()


def _stage(pins: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name in _PINS:
        shutil.copyfile(pins / name, work / name)


def _replace(work: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    work.rename(target)
