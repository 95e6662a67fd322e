"""When the rows of a partition are written."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from ingest.archive.buffer import Buffer
from ingest.archive.errors import ArchiveUnwritable
from ingest.archive.files import files, next_offset
from ingest.archive.settings import ArchiverSettings

SETTINGS = ArchiverSettings(flush_interval_s=2, flush_max_count=3, flush_max_bytes=100)


@dataclass
class Row:
    offset: int


def buffer(folder: Path) -> Buffer:
    return Buffer(folder, lambda rows: pa.table({"_offset": [row.offset for row in rows]}), position=0)


def test_nothing_is_never_due(tmp_path: Path) -> None:
    assert not buffer(tmp_path).due(SETTINGS, 1e9)


@pytest.mark.parametrize(
    ("rows", "size_bytes", "now_s", "due"),
    [
        (1, 1, 11.9, False),
        (1, 1, 12.0, True),
        (2, 1, 10, False),
        (3, 1, 10, True),
        (1, 99, 10, False),
        (1, 100, 10, True),
    ],
)
def test_time_rows_or_bytes_make_it_due(tmp_path: Path, rows: int, size_bytes: int, now_s: float, due: bool) -> None:
    filled = buffer(tmp_path)
    for offset in range(rows):
        filled.add(Row(offset), size_bytes, 10.0)
    assert filled.due(SETTINGS, now_s) is due


def test_what_was_written_is_gone_and_the_position_is_in_the_file(tmp_path: Path) -> None:
    filled = buffer(tmp_path)
    filled.add(Row(4), 10, 0.0)
    filled.add(Row(5), 10, 0.0)
    filled.position = 8
    assert filled.write(1) == 2
    assert (filled.rows, filled.size_bytes, next_offset(tmp_path)) == ([], 0, 8)
    assert filled.write(1) == 0
    assert len(files(tmp_path)) == 1


def test_rows_that_could_not_be_written_are_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled = buffer(tmp_path / "p")
    filled.add(Row(4), 10, 0.0)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", full)
        with pytest.raises(ArchiveUnwritable):
            filled.write(1)
    assert filled.write(1) == 1
    assert next_offset(tmp_path / "p") == 5
