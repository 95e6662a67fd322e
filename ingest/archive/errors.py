"""Errors of the archive.

ForgestreamError
└── ArchiveError
    ├── ArchiveInUse       another archiver writes to the same folder
    ├── ArchiveAhead       the archive holds offsets that the topic does not have: another cluster's archive
    ├── ArchiveDamaged     a file of the archive cannot be read
    └── ArchiveUnwritable  the folder cannot be written: disk full, rights
"""

from pathlib import Path

from schemas import ForgestreamError


class ArchiveError(ForgestreamError):
    """Something about the archive's folder."""


class ArchiveInUse(ArchiveError):
    """Another archiver writes to the folder."""

    def __init__(self, root: Path) -> None:
        super().__init__(f"archive {root}: another archiver writes to it: stop that one, or choose another folder")


class ArchiveAhead(ArchiveError):
    """The archive was written from another cluster, or the topic was deleted and made again."""

    def __init__(self, topic: str, partition: int, archived: int, end: int, root: Path) -> None:
        super().__init__(
            f"archive {root}: goes to offset {archived} of {topic}/{partition}, but that ends at {end}: "
            "it is from another cluster: move it away, or choose another folder (FORGESTREAM_ARCHIVER__ROOT)"
        )


class ArchiveDamaged(ArchiveError):
    """A file of the archive is no Parquet file of ours."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(
            f"archive file {path} cannot be read ({reason}): delete it; if it is the newest of its folder, "
            "its records are fetched again"
        )


class ArchiveUnwritable(ArchiveError):
    """A file could not be written; what was there before is unharmed."""

    def __init__(self, path: Path, reason: OSError) -> None:
        super().__init__(f"archive {path}: {reason.strerror}: make room or grant the right, then start again")
