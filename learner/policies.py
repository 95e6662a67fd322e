"""Policy versions on disk: `policies/<version>` in Hugging Face format, where engines read them."""

import shutil
from collections.abc import Callable
from pathlib import Path

from learner.durable import durable_folder, sweep
from learner.weights import weights_digest


class PolicyFolders:
    """The weight folders of one run.

    Args:
        folder: Where they lie.
        kept: How many of the newest stay.
    """

    def __init__(self, folder: Path, kept: int) -> None:
        self._folder = folder.absolute()  # engines run elsewhere in the file system
        self._kept = kept
        sweep(folder)

    def ensure(self, version: int, export: Callable[[Path], None]) -> tuple[Path, str]:
        """The folder of a version and its digest, made by `export` unless it is there already.

        Raises:
            RunFolderError: the disk refuses.
        """
        final = self._folder / str(version)
        if not final.is_dir():
            with durable_folder(final) as scratch:
                export(scratch)
        return final, weights_digest(final)

    def prune(self) -> None:
        """Remove all but the newest. Called after the newest was announced, so that it always stays."""
        versions = sorted(int(path.name) for path in self._folder.iterdir() if path.name.isdecimal())
        for version in versions[: -self._kept]:
            shutil.rmtree(self._folder / str(version), ignore_errors=True)
