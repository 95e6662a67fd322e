"""The digest of weights, against a rule written out by hand."""

import hashlib
from pathlib import Path

import pytest

from learner.weights import WeightsError, weights_digest


def test_the_digest_is_over_names_sizes_and_bytes_in_name_order(tmp_path: Path) -> None:
    (tmp_path / "b.safetensors").write_bytes(b"second")
    (tmp_path / "a.safetensors").write_bytes(b"first!!")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "c.safetensors").mkdir()
    told = b"a.safetensors\0\x07\0\0\0\0\0\0\0first!!b.safetensors\0\x06\0\0\0\0\0\0\0second"
    assert weights_digest(tmp_path) == hashlib.sha256(told).hexdigest()


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    data = bytes(range(256)) * 10_000  # 2.5 MB: three pieces
    (tmp_path / "model.safetensors").write_bytes(data)
    told = b"model.safetensors\0" + len(data).to_bytes(8, "little") + data
    assert weights_digest(tmp_path) == hashlib.sha256(told).hexdigest()


def test_one_changed_byte_or_name_changes_it(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"0000")
    first = weights_digest(tmp_path)
    file.write_bytes(b"0001")
    assert weights_digest(tmp_path) != first
    file.write_bytes(b"0000")
    file.rename(tmp_path / "model-1.safetensors")
    assert weights_digest(tmp_path) != first


def test_no_folder_and_no_weights(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="holds no"):
        weights_digest(tmp_path)
    with pytest.raises(WeightsError, match="No such file"):
        weights_digest(tmp_path / "absent")
