"""Checkpoints and policy folders: whole or absent, newest first, old ones gone."""

from pathlib import Path

import pytest

from learner.checkpoints import Checkpoints, LearnerState
from learner.durable import durable_folder, exclusive
from learner.errors import RunFolderError, RunMismatch
from learner.groups import CollectorState, Settled
from learner.policies import PolicyFolders
from schemas import Step


def state(step: int) -> LearnerState:
    collector = CollectorState({0: 7, 3: 12}, {"g": Settled(3, 15, 1)}, groups_trained=4, groups_dropped=2)
    record = Step(run_id="r", step=step, groups=["g"], metrics={"loss": -0.5})
    return LearnerState(
        run_id="r", policy_id="p", base_model="m", lora_rank=4, first_version=3, step=step, collector=collector,
        record=record,
    )  # fmt: skip


def save(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w" * 10)
    (folder / "deeper").mkdir()
    (folder / "deeper/file").write_text("x")


def broken(folder: Path) -> None:
    (folder / "weights").write_bytes(b"half")
    raise OSError(28, "No space left on device")


def test_newest_checkpoint_comes_back_as_it_was_written(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", kept=2)
    assert checkpoints.newest() is None
    for step in (9, 10):
        checkpoints.write(state(step), save)
    newest = Checkpoints(tmp_path / "checkpoints", kept=2).newest()
    assert newest is not None
    assert newest[0].name == "step-00000010"
    assert newest[1] == state(10)
    assert newest[1].policy_version == 13
    assert (newest[0] / "deeper/file").read_text() == "x"


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=2)
    for step in range(4):
        checkpoints.write(state(step), save)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


def test_failed_write_leaves_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=2)
    checkpoints.write(state(1), save)
    with pytest.raises(RunFolderError, match="the disk is full: make room"):
        checkpoints.write(state(2), broken)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_what_a_dead_writer_left_is_swept_and_never_read(tmp_path: Path) -> None:
    Checkpoints(tmp_path, kept=2).write(state(1), save)
    half = tmp_path / ".step-00000002.partial"
    half.mkdir()
    (half / "state.json").write_text("{}")
    newest = Checkpoints(tmp_path, kept=2).newest()
    assert newest is not None
    assert newest[1].step == 1
    assert not half.exists()


def test_step_that_another_learner_has_written_is_not_overwritten(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, kept=2)
    checkpoints.write(state(1), save)
    with pytest.raises(RunFolderError, match="another learner works in this folder"):
        checkpoints.write(state(1), save)


def test_unreadable_state_names_the_file(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, kept=2).write(state(1), save)
    (path / "state.json").write_text('{"run_id": 3}')
    with pytest.raises(RunMismatch, match=r"step-00000001/state\.json cannot be read"):
        Checkpoints(tmp_path, kept=2).newest()


def test_folder_is_held_by_one(tmp_path: Path) -> None:
    with exclusive(tmp_path / "run"), pytest.raises(RunFolderError, match="another learner works in"):
        exclusive(tmp_path / "run").__enter__()
    with exclusive(tmp_path / "run"):
        pass


def test_durable_folder_does_not_replace(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there/file").write_text("old")
    with pytest.raises(RunFolderError), durable_folder(tmp_path / "there") as scratch:
        (scratch / "file").write_text("new")
    assert (tmp_path / "there/file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def export(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weights")


def test_policy_is_exported_once(tmp_path: Path) -> None:
    policies = PolicyFolders(tmp_path, kept=2)
    calls: list[Path] = []

    def counted(folder: Path) -> None:
        calls.append(folder)
        export(folder)

    first = policies.ensure(7, counted)
    assert first == policies.ensure(7, counted)
    assert len(calls) == 1
    assert first[0] == tmp_path / "7"
    assert len(first[1]) == 64


def test_pruning_keeps_the_highest_versions(tmp_path: Path) -> None:
    policies = PolicyFolders(tmp_path, kept=2)
    for version in (8, 9, 10, 11):
        policies.ensure(version, export)
    policies.prune()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["10", "11"]
