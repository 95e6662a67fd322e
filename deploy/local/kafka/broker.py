"""The embedded broker: start, watch, stop. Linux, one node, controller and broker in one JVM.

A home folder holds everything that outlives a start: `data/`, `logs/`, `server.properties`, `broker.json` (pid and
address of the last start) and `broker.lock`.
"""

import base64
import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from deploy.local.kafka.errors import BrokerDied, EmbeddedBrokerError, HomeInUse, PortTaken, StartTimeout
from deploy.local.kafka.install import DEFAULT_CACHE, ensure_jars
from deploy.local.kafka.java import archive_name, command, find_java, logs_setting

_HOST = "127.0.0.1"
_TEMPLATE = Path(__file__).parent / "server.properties.in"
# Below the range from which the kernel takes ports for outgoing connections: a client that knocks at the port of a
# broker that is away must not be given that very port, connect to itself and keep the broker from coming back.
_PORTS = range(19_000, 32_000)
_ATTEMPTS = 3
# Somebody who only looks whether the home is in use holds its lock for a moment, too.
_LOCK_ATTEMPTS = 5
_LOCK_RETRY_S = 0.05


@dataclass(frozen=True)
class RunningBroker:
    """A broker that holds a home folder now."""

    pid: int
    bootstrap: str


class EmbeddedBroker:
    """One broker process on one home folder.

    Args:
        home: Folder of this broker's data; made when missing.
        port: Port for clients. None: the one of the last start on this home when it is free, so that clients find
            the broker again, else any.
        cache: Where the jars are kept (default `.forgestream/kafka`).
        jars: A folder with the jars, instead of fetching them.
        java: The Java program (default `java` on PATH).
    """

    def __init__(
        self,
        home: Path,
        port: int | None = None,
        cache: Path | None = None,
        *,
        jars: Path | None = None,
        java: str | None = None,
    ) -> None:
        self._home = home.resolve()
        self._wanted_port = port
        self._cache = (cache or DEFAULT_CACHE).resolve()
        self._jars = jars
        self._java = java
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def bootstrap(self) -> str:
        """Address for clients, `host:port`; the last one while the broker is down."""
        return f"{_HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Process id of the JVM that this object started."""
        return self._process.pid if self._process else None

    def start(self, timeout_s: float = 60.0, *, flags: Sequence[str] | None = None) -> str:
        """Starts the broker and waits until it answers. Returns its address, `host:port`.

        Args:
            timeout_s: How long the broker may take to answer.
            flags: JVM flags instead of the use of the class archive.

        Raises:
            ToolMissing: no Java, or no Maven to fetch the broker with.
            InstallFailed: the broker cannot be fetched.
            HomeInUse: another broker runs on this home.
            PortTaken: the wanted port belongs to another process.
            BrokerDied: the process ended; the message has its exit code and last log lines.
            StartTimeout: no answer in time.
        """
        java = find_java(self._java)
        jars = self._jars or ensure_jars(self._cache)
        (self._home / "logs").mkdir(parents=True, exist_ok=True)
        with self._hold_home() as lock:
            # From the spawn on the JVM holds the lock too: it lives exactly as long as the process that uses the data.
            self._launch(java, jars, lock, timeout_s, flags)
        return self.bootstrap

    def poll(self) -> int | None:
        """None while the broker's process runs; else its exit code (negative: the signal that ended it)."""
        return self._process.poll() if self._process else 0

    def failure(self) -> BrokerDied:
        """An error that tells how the broker's process ended: exit code and last log lines."""
        return BrokerDied(f"Kafka broker in {self._home} ended with exit code {self.poll()}: {self._last_words()}")

    def stop(self, grace_s: float = 30.0) -> None:
        """Ends the broker cleanly; after `grace_s` seconds by force. Does nothing when it has ended already."""
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """Ends the broker at once, as a crash would (SIGKILL)."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def _hold_home(self) -> IO[bytes]:
        lock = (self._home / "broker.lock").open("ab")
        for _ in range(_LOCK_ATTEMPTS):
            # Kafka's own lock is looked at only after a second process has already written to the metadata log.
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            time.sleep(_LOCK_RETRY_S)
        lock.close()
        other = find_running(self._home)
        who = f"pid {other.pid}, {other.bootstrap}" if other else "just starting"
        raise HomeInUse(f"{self._home} is in use by another Kafka broker ({who}): stop it, or use that one")

    def _launch(self, java: Path, jars: Path, lock: IO[bytes], timeout_s: float, flags: Sequence[str] | None) -> None:
        archive = self._cache / archive_name(java, jars)
        if flags is None:
            flags = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
        last = _read_state(self._home)
        for attempt in range(_ATTEMPTS):
            self._port = self._choose_port(last if attempt == 0 else None)
            if not (self._home / "data/meta.properties").exists():
                self._format(java, jars, flags)
            properties = self._write_properties("server.properties", self._home / "data")
            self._spawn(command(java, jars, self._home / "logs", flags, "kafka.Kafka", str(properties)), lock)
            try:
                self._wait_ready(timeout_s)
                return
            except BrokerDied:
                # A port that was free a moment ago may be taken before the JVM binds it.
                if not self._port_was_taken():
                    raise
                if self._wanted_port:
                    raise PortTaken(_taken(self._wanted_port)) from None
                if attempt == _ATTEMPTS - 1:
                    raise
            except BaseException:
                self.kill()
                raise

    def _choose_port(self, last: RunningBroker | None) -> int:
        if self._wanted_port:
            if not _is_free(self._wanted_port):
                raise PortTaken(_taken(self._wanted_port))
            return self._wanted_port
        remembered = int(last.bootstrap.rpartition(":")[2]) if last else 0
        return remembered if remembered and _is_free(remembered) else _free_port()

    def _write_properties(self, name: str, data: Path) -> Path:
        text = _TEMPLATE.read_text()
        for mark, value in {"@PORT@": self._port, "@CPORT@": _free_port(), "@DATA@": data}.items():
            text = text.replace(mark, str(value))
        path = self._home / name
        _write_atomically(path, text)
        return path

    def _format(self, java: Path, jars: Path, flags: Sequence[str]) -> None:
        """Gives a new data folder its cluster id, beside its place: a half-formatted one would start, and misbehave."""
        fresh = self._home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        properties = self._write_properties("format.properties", fresh)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[:22]
        arguments = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(properties)]
        done = subprocess.run(
            command(java, jars, self._home / "logs", flags, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            reason = (done.stdout.strip().splitlines() or ["no output"])[-1]
            raise EmbeddedBrokerError(f"cannot format {fresh} for Kafka: {reason}")
        properties.unlink()
        try:
            fresh.replace(self._home / "data")
        except OSError as error:
            raise EmbeddedBrokerError(
                f"{self._home}/data holds files, but no Kafka log (meta.properties): move it away"
            ) from error

    def _spawn(self, arguments: Sequence[str], lock: IO[bytes]) -> None:
        # A session of its own: Ctrl-C in the terminal must not reach the broker before the services have flushed.
        with (self._home / "logs/console.log").open("wb") as console:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
        state = {"pid": self.pid, "bootstrap": self.bootstrap}
        _write_atomically(self._home / "broker.json", json.dumps(state))

    def _wait_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        admin: AdminClient | None = None
        while time.monotonic() < deadline:
            if self.poll() is not None:
                raise self.failure()
            with contextlib.suppress(OSError, KafkaException):
                socket.create_connection((_HOST, self._port), 0.2).close()
                admin = admin or AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
                if admin.list_topics(timeout=1).brokers:
                    return
            time.sleep(0.02)
        raise StartTimeout(
            f"Kafka broker on {self.bootstrap} did not answer within {timeout_s:g} s: {self._last_words()}"
        )

    def _log_text(self) -> str:
        logs = [self._home / "logs/broker.log", self._home / "logs/console.log"]
        return "\n".join(log.read_text(errors="replace")[-20_000:] for log in logs if log.exists())

    def _port_was_taken(self) -> bool:
        return "BindException" in self._log_text()

    def _last_words(self) -> str:
        lines = [line.strip() for line in self._log_text().splitlines()]
        told = [line for line in lines if " ERROR " in line or " FATAL " in line or line.startswith(("Error", "FATAL"))]
        last = (told or [line for line in lines if line])[-2:]
        return f"{' | '.join(last) or 'no log'} (logs in {self._home}/logs)"


def find_running(home: Path) -> RunningBroker | None:
    """The broker that holds this home now, or None."""
    home = home.resolve()
    state = _read_state(home)
    if state is None:
        return None
    try:
        with (home / "broker.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except FileNotFoundError:
        return None
    except BlockingIOError:
        # The pid may be that of an earlier broker, while a new one is just being started.
        return state if logs_setting(home / "logs") in _command_line(state.pid) else None


def stop_running(home: Path, grace_s: float = 30.0) -> bool:
    """Ends a broker that was left behind by a launcher that is gone. Returns whether there was one."""
    running = find_running(home)
    if running is None:
        return False
    deadline = time.monotonic() + grace_s
    with contextlib.suppress(ProcessLookupError):
        os.kill(running.pid, signal.SIGTERM)
        while find_running(home) and time.monotonic() < deadline:
            time.sleep(0.05)
        if find_running(home):
            os.kill(running.pid, signal.SIGKILL)
    return True


def _read_state(home: Path) -> RunningBroker | None:
    try:
        state = json.loads((home / "broker.json").read_text())
        return RunningBroker(int(state["pid"]), str(state["bootstrap"]))
    except (OSError, ValueError, KeyError):
        return None


def _command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _write_atomically(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the broker will: connections that are merely fading away do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    for port in random.sample(_PORTS, 200):
        if _is_free(port):
            return port
    raise PortTaken(f"no free port between {_PORTS.start} and {_PORTS.stop} on {_HOST}")


def _taken(port: int) -> str:
    return f"port {port} is in use by another process: stop it, or choose another port for the Kafka broker"
