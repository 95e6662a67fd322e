"""A whole stack as a user runs it: `forgestream up` in a process of its own, on free ports and a fresh state folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from tests.support.log_reader import Log, read_log

ROOT = Path(__file__).parents[2]


class RunningStack:
    """Handles a test needs: commands on the stack, its log, its services."""

    def __init__(self, state: Path, process: subprocess.Popen[bytes]) -> None:
        self.state = state
        self.process = process

    @property
    def description(self) -> dict[str, Any]:
        return json.loads((self.state / "run" / "stack.json").read_text())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "deploy.cli", *arguments, "--state", str(self.state)]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)

    def produce(self, tasks: list[dict[str, Any]], *options: str) -> None:
        path = self.state / "tasks.jsonl"
        path.write_text("\n".join(json.dumps(task) for task in tasks))
        done = self.command("tasks", "produce", str(path), *options)
        assert done.returncode == 0, done.stderr

    def log(self) -> Log:
        return read_log(self.description["bootstrap_servers"])

    def _log_if_up(self) -> Log | None:
        """The log; None while a killed broker is on its way back."""
        try:
            return self.log()
        except KafkaException:
            return None

    def wait(self, what: str, holds: Callable[[Log], bool], timeout_s: float) -> Log:
        deadline = time.monotonic() + timeout_s
        while True:
            assert self.process.poll() is None, self.last_words()
            log = self._log_if_up()
            if log is not None and holds(log):
                return log
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}; {self.last_words()}"
            time.sleep(1.0)

    def kill(self, service: str) -> None:
        os.kill(self.description["services"][service]["pid"], signal.SIGKILL)

    def kill_broker(self) -> None:
        os.kill(json.loads((self.state / "broker" / "broker.json").read_text())["pid"], signal.SIGKILL)

    def last_words(self) -> str:
        logs = [self.state / "up.log", *sorted((self.state / "logs").glob("*.log"))]
        return "\n".join(f"--- {log.name}\n{log.read_text()[-1500:]}" for log in logs if log.exists())


@contextmanager
def running_stack(state: Path, *options: str) -> Iterator[RunningStack]:
    """A stack that is ready; stopped, and checked for a clean end, on leaving."""
    state.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "deploy.cli", "up", "--json", "--ports", "auto", "--state", str(state), *options]
    with (state / "up.log").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    stack = RunningStack(state, process)
    try:
        _wait_until_up(stack)
        yield stack
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert process.returncode == 0, stack.last_words()


def _wait_until_up(stack: RunningStack, timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while '"up"' not in (stack.state / "up.log").read_text():
        assert stack.process.poll() is None, stack.last_words()
        assert time.monotonic() < deadline, stack.last_words()
        time.sleep(0.2)
