"""The archive's layout: `<root>/<topic>/partition=<n>/<first offset, 20 digits>.parquet`.

A file holds records of one partition in order and says in its metadata at which offset the next one begins, so the
archive itself is the archiver's position. A small newest file is written again with the new rows in it, under its own
name: readers see the old or the new one, a crash leaves the old one, and what it lost is fetched from the log again.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ingest.archive.errors import ArchiveDamaged, ArchiveInUse, ArchiveUnwritable

NEXT_OFFSET = b"forgestream.next_offset"
"""Key in a file's metadata: where the next file begins; behind the last row, and behind gaps of the log."""
_SUFFIX = ".parquet"
_TEMPORARY = ".tmp"


def partition_folder(root: Path, topic: str, partition: int) -> Path:
    """Where the files of one partition lie; `topic` without prefix."""
    return root / topic / f"partition={partition}"


def files(folder: Path) -> list[Path]:
    """The files of a partition, oldest first; empty when there is no such folder."""
    return sorted(folder.glob(f"*{_SUFFIX}"))


def next_offset(folder: Path) -> int | None:
    """The offset after everything that is archived of a partition; None when nothing is.

    Raises:
        ArchiveDamaged: the newest file cannot be read.
    """
    newest = files(folder)[-1:]
    return _next_offset(newest[0]) if newest else None


def append(folder: Path, rows: pa.Table, position: int, roll_bytes: int) -> Path:
    """Add rows to a partition, durably. Returns the file that holds them now.

    Args:
        folder: of the partition.
        rows: sorted by `_offset`, all beyond what is archived.
        position: the offset after them, behind gaps.
        roll_bytes: a newest file smaller than this takes the rows in; else they begin a new one.

    Raises:
        ArchiveDamaged: the newest file cannot be read.
        ArchiveUnwritable: disk full, or no right. What was there is unharmed.
    """
    target = folder / f"{rows['_offset'][0].as_py():020d}{_SUFFIX}"
    newest = files(folder)[-1:]
    if newest and newest[0].stat().st_size < roll_bytes:
        before = _read(newest[0])
        if before.schema.remove_metadata() == rows.schema:
            target, rows = newest[0], pa.concat_tables([before.replace_schema_metadata(None), rows])
    _write(target, rows.replace_schema_metadata({NEXT_OFFSET: str(position).encode()}))
    return target


def remove_leftovers(root: Path) -> None:
    """Delete what a crash left half written."""
    for path in root.glob(f"*/*/*{_TEMPORARY}"):
        path.unlink()


@contextlib.contextmanager
def sole_writer(root: Path) -> Iterator[None]:
    """Hold the archive's lock while the block runs. The lock ends with the process, however that ends.

    Raises:
        ArchiveInUse: another process holds it.
        ArchiveUnwritable: the folder cannot be made.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / ".lock").open("w")
    except OSError as error:
        raise ArchiveUnwritable(root, error) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ArchiveInUse(root) from error
        yield


def _next_offset(path: Path) -> int:
    try:
        return int((pq.read_metadata(path).metadata or {})[NEXT_OFFSET])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ArchiveDamaged(path, error) from error


def _read(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()  # not read_table: it would make a column of `partition=0` in the path
    except (pa.ArrowException, OSError) as error:
        raise ArchiveDamaged(path, error) from error


def _write(target: Path, table: pa.Table) -> None:
    temporary = target.with_name(f"{target.name}{_TEMPORARY}")
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as sink:
            # Dictionaries pay for names and kinds; for token ids they would double the file.
            pq.write_table(table, sink, compression="zstd", use_dictionary=texts)  # pyright: ignore[reportArgumentType]
            sink.flush()
            os.fsync(sink.fileno())
        temporary.rename(target)
        _sync_folder(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise ArchiveUnwritable(target, error) from error


def _sync_folder(folder: Path) -> None:
    """A rename is durable only when its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
