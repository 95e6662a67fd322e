import os
import socket
from pathlib import Path

import pytest

from rollouts.errors import RuntimeFault
from rollouts.runtimes import folders
from schemas import TaskFile


def test_an_attempt_starts_in_clean_folders(tmp_path: Path) -> None:
    root = tmp_path / "a-1"
    (root / "workspace").mkdir(parents=True)
    (root / "workspace" / "old").touch()
    files = [TaskFile(path="bin/run.sh", content=b"#!", executable=True), TaskFile(path="a.txt", content=b"a")]
    folders.make_attempt(root, {"agent/x.json": b"{}"}, files)
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()) == [
        "home/agent/x.json", "workspace/a.txt", "workspace/bin/run.sh",
    ]  # fmt: skip
    assert os.access(root / "workspace/bin/run.sh", os.X_OK)
    assert not os.access(root / "workspace/a.txt", os.X_OK)


def test_a_copy_cannot_be_led_out_of_itself(tmp_path: Path) -> None:
    """Links are copied as links; one that stands where the verifier lays a file is replaced, not followed."""
    source, target, outside = tmp_path / "w", tmp_path / "copy", tmp_path / "outside"
    source.mkdir()
    outside.mkdir()
    (outside / "precious").write_text("keep")
    (source / "judge.py").symlink_to(outside / "precious")
    (source / "lib").symlink_to(outside)
    (source / "plain").write_text("x")
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(source / "socket"))
    folders.copy_workspace(
        source, target, [TaskFile(path="judge.py", content=b"new"), TaskFile(path="lib/a.py", content=b"new")]
    )
    assert sorted(str(path.relative_to(target)) for path in target.rglob("*")) == [
        "judge.py", "lib", "lib/a.py", "plain",
    ]  # fmt: skip
    assert (target / "judge.py").read_text() == "new"
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("precious", "keep")]


def test_what_a_harness_left_is_read_within_bounds(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text("{}")
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "folder").mkdir()
    (tmp_path / "huge").write_bytes(b"x" * (4 * 1024 * 1024 + 1))
    assert folders.read_out(tmp_path) == {"result.json": b"{}"}
    assert folders.read_out(tmp_path / "none") == {}


def test_sizes_count_blocks_and_follow_no_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(b"x" * 100_000)
    (tmp_path / "all").symlink_to("/usr")
    assert 100_000 <= folders.folder_bytes(tmp_path) < 200_000


def test_removing_takes_links_for_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    folders.remove(tmp_path / "link")
    folders.remove(tmp_path / "none")
    assert [path.name for path in tmp_path.iterdir()] == ["real"]


def test_a_folder_that_cannot_be_made_is_the_platforms_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeFault, match="cannot prepare"):
        folders.make_attempt(tmp_path / "file" / "a-1", {}, [])


def test_a_state_folder_keeps_its_mark(tmp_path: Path) -> None:
    assert folders.state_mark(tmp_path) == folders.state_mark(tmp_path / "x" / "..")
    assert folders.state_mark(tmp_path) != folders.state_mark(tmp_path / "x")
