"""What the broker needs, and what is said when it is not there."""

import os
import shutil
from pathlib import Path

import pytest

from deploy.local.kafka.errors import InstallFailed, ToolMissing
from deploy.local.kafka.install import check_jars, ensure_jars
from deploy.local.kafka.java import archive_name, find_java

APT = "apt-get install openjdk-17-jre-headless maven"


def test_missing_java_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=APT):
        find_java()


def test_a_wanted_java_that_does_not_exist_is_named() -> None:
    with pytest.raises(ToolMissing, match="/nowhere/java"):
        find_java("/nowhere/java")


def test_missing_maven_names_the_command_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolMissing, match=APT):
        ensure_jars(tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["install.lock"]


def test_a_maven_that_fails_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] Could not resolve dependencies'\necho '[ERROR] more'\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "cache/jars.cut-off").mkdir(parents=True)
    with pytest.raises(InstallFailed, match="Could not resolve dependencies") as caught:
        ensure_jars(tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["install.lock"]


def test_an_altered_jar_is_refused(kafka_cache: Path, tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    shutil.copytree(ensure_jars(kafka_cache), jars, copy_function=os.link)
    check_jars(jars)
    victim = jars / "slf4j-api-1.7.36.jar"
    victim.unlink()
    victim.write_bytes(b"something else")
    with pytest.raises(InstallFailed, match=r"slf4j-api-1\.7\.36\.jar"):
        check_jars(jars)


def test_the_class_archive_belongs_to_one_set_of_jars(tmp_path: Path) -> None:
    java = find_java()
    (tmp_path / "a.jar").write_bytes(b"1")
    first = archive_name(java, tmp_path)
    assert archive_name(java, tmp_path) == first
    (tmp_path / "a.jar").write_bytes(b"22")
    assert archive_name(java, tmp_path) != first
