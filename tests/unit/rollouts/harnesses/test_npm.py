"""Installing with npm, over a stand-in for npm itself."""

from pathlib import Path

import pytest

from rollouts.errors import HarnessMissing
from rollouts.harnesses.npm import npm_install

PINS = {"package.json": "{}", "package-lock.json": '{"a": 1}'}


@pytest.fixture
def pins(tmp_path: Path) -> Path:
    folder = tmp_path / "pins"
    folder.mkdir()
    for name, text in PINS.items():
        (folder / name).write_text(text)
    return folder


def use_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "npm").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")


async def test_it_installs_once_and_again_when_the_pins_change(
    tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "packs" / "x-1"
    use_npm(tmp_path, monkeypatch, f'echo "$@" >> {tmp_path}/calls; cp package-lock.json installed')
    for _ in range(2):
        await npm_install(pins, target)
    assert (target / "installed").read_text() == '{"a": 1}'
    (pins / "package-lock.json").write_text('{"a": 2}')
    await npm_install(pins, target)
    assert (target / "installed").read_text() == '{"a": 2}'
    called = (tmp_path / "calls").read_text().splitlines()
    assert called == ["ci --ignore-scripts --no-audit --no-fund --loglevel=error"] * 2
    assert [path.name for path in target.parent.iterdir()] == ["x-1"]


async def test_a_failure_says_why_and_leaves_nothing(
    tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_npm(tmp_path, monkeypatch, "echo npm error EINTEGRITY; exit 1")
    with pytest.raises(HarnessMissing, match=r"npm ci failed with status 1 in .*: npm error EINTEGRITY"):
        await npm_install(pins, tmp_path / "packs" / "x-1")
    assert list((tmp_path / "packs").iterdir()) == []


async def test_without_npm_it_says_what_to_install(tmp_path: Path, pins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessMissing, match=r"npm is not on PATH: install Node\.js 20 or newer with npm"):
        await npm_install(pins, tmp_path / "packs" / "x-1")


def test_the_pins_of_pi_name_digests_and_no_hosts() -> None:
    lock = (Path(__file__).parents[4] / "rollouts/harnesses/pi/package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert "registry." not in lock
    assert lock.count('"integrity"') > 100
