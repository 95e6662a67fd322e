"""The archive's layout: names, positions, growth of small files, and what a crash leaves."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.archive.errors import ArchiveDamaged, ArchiveInUse, ArchiveUnwritable
from ingest.archive.files import append, files, next_offset, partition_folder, remove_leftovers, sole_writer

SMALL, NEVER = 1 << 20, 1


def rows(*offsets: int, text: str = "") -> pa.Table:
    return pa.table(
        {"text": [text or f"t{o}" for o in offsets], "_offset": offsets},
        schema=pa.schema([("text", pa.string()), ("_offset", pa.int64())]),
    )


def archived(folder: Path) -> list[int]:
    return [offset for path in files(folder) for offset in pq.ParquetFile(path).read()["_offset"].to_pylist()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return partition_folder(tmp_path, "tasks.v1", 3)


def test_names_tell_topic_partition_and_first_offset(tmp_path: Path, folder: Path) -> None:
    path = append(folder, rows(42, 43), 44, SMALL)
    assert path == tmp_path / "tasks.v1/partition=3/00000000000000000042.parquet"


def test_nothing_archived_is_no_position(folder: Path) -> None:
    assert next_offset(folder) is None
    assert files(folder) == []


def test_the_position_lies_behind_gaps(folder: Path) -> None:
    append(folder, rows(5, 6), 9, SMALL)
    assert next_offset(folder) == 9


def test_a_small_file_takes_the_next_rows_in(folder: Path) -> None:
    first = append(folder, rows(0, 1), 2, SMALL)
    assert append(folder, rows(5, 6), 7, SMALL) == first
    assert (archived(folder), next_offset(folder), len(files(folder))) == ([0, 1, 5, 6], 7, 1)


def test_a_large_file_is_left_alone(folder: Path) -> None:
    append(folder, rows(0, 1), 2, NEVER)
    append(folder, rows(2), 3, NEVER)
    assert [path.stem for path in files(folder)] == [f"{n:020d}" for n in (0, 2)]
    assert next_offset(folder) == 3


def test_other_columns_begin_a_file_of_their_own(folder: Path) -> None:
    append(folder, rows(0), 1, SMALL)
    append(folder, rows(1).append_column("new", pa.array(["x"])), 2, SMALL)
    assert len(files(folder)) == 2


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.sampled_from([NEVER, 900, 1_500, SMALL]))
def test_whatever_the_flushes_each_row_is_there_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], roll_bytes: int
) -> None:
    folder = partition_folder(tmp_path_factory.mktemp("archive"), "t", 0)
    at = 0
    for size in sizes:
        append(folder, rows(*range(at, at + size)), at + size, roll_bytes)
        at += size
    assert archived(folder) == list(range(at))
    assert next_offset(folder) == at


def test_rows_that_are_written_again_after_a_crash_replace_what_was_half_there(tmp_path: Path, folder: Path) -> None:
    append(folder, rows(0, 1), 2, NEVER)
    (folder / "00000000000000000002.parquet.tmp").write_bytes(b"PAR1 half")
    remove_leftovers(tmp_path)
    assert next_offset(folder) == 2
    append(folder, rows(2, 3, 4), 5, NEVER)
    assert archived(folder) == [0, 1, 2, 3, 4]
    assert sorted(path.suffix for path in folder.iterdir()) == [".parquet", ".parquet"]


@pytest.mark.parametrize("content", [b"", b"PAR1 not a file"])
def test_a_damaged_file_is_named(folder: Path, content: bytes) -> None:
    path = append(folder, rows(0), 1, NEVER)
    path.write_bytes(content)
    with pytest.raises(ArchiveDamaged, match=f"{path}.*delete it"):
        next_offset(folder)


def test_a_foreign_parquet_file_is_named(folder: Path) -> None:
    folder.mkdir(parents=True)
    pq.write_table(rows(0), folder / "00000000000000000000.parquet")
    with pytest.raises(ArchiveDamaged, match="next_offset"):
        next_offset(folder)


def test_a_disk_that_takes_nothing_leaves_what_was_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(folder, rows(0, 1), 2, SMALL)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ArchiveUnwritable, match="No space left on device: make room"):
        append(folder, rows(2), 3, SMALL)
    assert (archived(folder), next_offset(folder)) == ([0, 1], 2)
    assert len(list(folder.iterdir())) == 1


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    with (
        sole_writer(tmp_path / "archive"),
        pytest.raises(ArchiveInUse, match="another archiver"),
        sole_writer(tmp_path / "archive"),
    ):
        pass
    with sole_writer(tmp_path / "archive"):
        pass
