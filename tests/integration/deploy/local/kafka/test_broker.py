"""The embedded broker: one a home, the same address again, and what is said when it does not go."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.kafka import EmbeddedBroker, RunningBroker, find_running, install, stop_running
from deploy.local.kafka.errors import BrokerDied, EmbeddedBrokerError, HomeInUse, PortTaken, ToolMissing

Make = Callable[..., EmbeddedBroker]


@pytest.fixture
def make(kafka_cache: Path) -> Iterator[Make]:
    """Makes brokers and ends them with the test."""
    made: list[EmbeddedBroker] = []

    def build(home: Path, port: int | None = None, **more: str) -> EmbeddedBroker:
        made.append(EmbeddedBroker(home, port, kafka_cache, **more))  # pyright: ignore[reportArgumentType]
        return made[-1]

    yield build
    for broker in made:
        broker.stop()


def test_a_home_has_one_broker_and_keeps_its_address(make: Make, tmp_path: Path) -> None:
    home = tmp_path / "kafka"
    broker = make(home)
    bootstrap = broker.start()
    assert broker.poll() is None
    assert find_running(home) == RunningBroker(broker.pid or 0, bootstrap)
    with pytest.raises(HomeInUse, match=rf"pid {broker.pid}, {bootstrap}"):
        make(home).start()
    assert broker.poll() is None

    os.kill(broker.pid or 0, signal.SIGKILL)
    while broker.poll() is None:
        time.sleep(0.01)
    assert str(broker.failure()).startswith(f"Kafka broker in {home} ended with exit code -9")
    assert find_running(home) is None
    assert broker.start() == bootstrap

    broker.stop()
    assert find_running(home) is None
    with socket.socket() as other:
        other.bind(("127.0.0.1", int(bootstrap.rpartition(":")[2])))
        other.listen()
        assert make(home).start() != bootstrap  # remembered, but taken: another will do


def test_a_port_that_is_taken_is_named_before_anything_starts(make: Make, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} is in use"):
            make(tmp_path / "kafka", port).start()
    assert not (tmp_path / "kafka/logs/broker.log").exists()


def test_a_broker_that_dies_at_the_start_says_why_in_one_line(make: Make, tmp_path: Path) -> None:
    home = tmp_path / "kafka"
    (home / "data").mkdir(parents=True)
    (home / "data/meta.properties").write_text("version=1\n")  # no cluster id: the broker refuses it
    with pytest.raises(BrokerDied, match=r"exit code 1: .*meta\.properties.* \(logs in .*/kafka/logs\)") as caught:
        make(home).start()
    assert "\n" not in str(caught.value)
    assert find_running(home) is None


def test_a_data_folder_that_is_not_kafkas_is_left_alone(make: Make, tmp_path: Path) -> None:
    (tmp_path / "kafka/data").mkdir(parents=True)
    (tmp_path / "kafka/data/thesis.txt").write_text("precious")
    with pytest.raises(EmbeddedBrokerError, match=r"/kafka/data holds files, but no Kafka log"):
        make(tmp_path / "kafka").start()
    assert (tmp_path / "kafka/data/thesis.txt").read_text() == "precious"


def test_a_pid_that_is_no_broker_any_more_is_not_touched(tmp_path: Path) -> None:
    home = tmp_path / "kafka"
    home.mkdir()
    (home / "broker.json").write_text(f'{{"pid": {os.getpid()}, "bootstrap": "127.0.0.1:1"}}')
    with (home / "broker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert find_running(home) is None
        assert stop_running(home) is False


def test_a_broker_outlives_a_killed_launcher_and_is_found_and_stopped(kafka_cache: Path, tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time; from deploy.local.kafka import EmbeddedBroker;"
        "EmbeddedBroker(pathlib.Path(sys.argv[1]), cache=pathlib.Path(sys.argv[2])).start();"
        "print('up', flush=True); time.sleep(60)"
    )
    home = tmp_path / "kafka"
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, str(home), str(kafka_cache)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[5],
    )
    assert launcher.stdout is not None
    assert launcher.stdout.readline() == b"up\n"
    launcher.kill()
    launcher.communicate()
    left = find_running(home)
    assert left is not None
    with pytest.raises(HomeInUse, match=f"pid {left.pid}"):
        EmbeddedBroker(home, cache=kafka_cache).start()
    assert stop_running(home) is True
    assert find_running(home) is None
    assert stop_running(home) is False


def test_missing_java_is_said_before_anything_is_made(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="apt-get install openjdk-17-jre-headless maven"):
        make(tmp_path / "kafka", java="/nowhere/java").start()
    assert not (tmp_path / "kafka").exists()


def test_an_installed_broker_is_not_installed_again(kafka_cache: Path) -> None:
    install(kafka_cache)  # makes sure; may take its time once
    said: list[str] = []
    began = time.monotonic()
    assert install(kafka_cache, report=said.append) == kafka_cache / "jars"
    assert said == []
    assert time.monotonic() - began < 2
