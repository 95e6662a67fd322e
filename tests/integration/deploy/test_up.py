"""`forgestream up` and `down` with a real broker and the services that need no model."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from deploy.local.kafka import find_running
from deploy.local.processes import marked_processes

ROOT = Path(__file__).parents[3]
SMALL = [
    "--ports",
    "auto",
    *(part for name in ("proxy", "launcher", "engine", "learner") for part in ("--without", name)),
]


def forgestream(*arguments, **options):
    command = [sys.executable, "-m", "deploy.cli", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **options)


@pytest.fixture
def up(tmp_path):
    started = []

    def up(*arguments):
        process = forgestream("up", "--state", tmp_path, *SMALL, *arguments, start_new_session=True)
        started.append(process)
        return process

    yield up
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def until(process, event, **fields):
    for line in process.stdout:
        told = json.loads(line)
        if told["event"] == event and fields.items() <= told.items():
            return told
    raise AssertionError(f"no {event} {fields}: {process.stderr.read()}")


def nothing_runs(state):
    return not marked_processes(state) and find_running(state / "broker") is None


def test_ctrl_c_stops_everything_in_order(up, tmp_path, kafka_cache):
    stack = up()
    told = until(stack, "up")
    assert set(told["ready_s"]) == {"broker", "topics", "assembler", "archiver"}
    status = until(stack, "status")
    assert [service["ready"] for service in status["services"]] == [True, True]
    stack.send_signal(signal.SIGINT)
    rest = [json.loads(line) for line in stack.stdout]
    assert [e["service"] for e in rest if e["event"] == "stopped"] == ["assembler", "archiver", "broker"]
    assert stack.wait(10) == 0
    assert nothing_runs(tmp_path)


def test_other_commands_find_the_running_stack_and_down_stops_it(up, tmp_path):
    stack = up()
    until(stack, "up")
    listed = forgestream("topics", "list", "--json", "--state", tmp_path)
    topics = [json.loads(line) for line in listed.communicate(timeout=60)[0].splitlines()]
    assert {"name": "rollouts.v1", "partitions": 4, "records": 0, "cleanup": "delete"} in topics

    second = up()
    error = second.communicate(timeout=60)[1]
    assert second.returncode == 3
    assert f"a stack already runs on {tmp_path} (pid {stack.pid}): `forgestream down` stops it" in error

    down = forgestream("down", "--state", tmp_path, "--json")
    assert json.loads(down.communicate(timeout=90)[0]) == {"stopped": stack.pid, "state": str(tmp_path)}
    assert stack.wait(5) == 0
    assert nothing_runs(tmp_path)


def test_after_a_killed_stack_the_next_one_cleans_up_and_keeps_the_log(up, tmp_path):
    first = up()
    until(first, "up")
    produced = forgestream("tasks", "produce", _one_task(tmp_path), "--state", tmp_path)
    produced.communicate(timeout=60)
    assert produced.returncode == 0
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = up()
    until(second, "up")
    listed = forgestream("topics", "list", "--json", "--state", tmp_path)
    topics = [json.loads(line) for line in listed.communicate(timeout=60)[0].splitlines()]
    assert {"name": "tasks.v1", "partitions": 4, "records": 1, "cleanup": "delete"} in topics
    second.send_signal(signal.SIGTERM)
    assert second.communicate(timeout=60)[1] == ""
    assert nothing_runs(tmp_path)


@pytest.mark.parametrize("victim", ["broker", "assembler"])
def test_what_is_killed_comes_back(up, victim):
    stack = up()
    pid = until(stack, "ready", service=victim)["pid"]
    until(stack, "up")
    os.kill(pid, signal.SIGKILL)
    crashed = until(stack, "crashed", service=victim)
    assert "SIGKILL" in crashed["message"] or "-9" in crashed["message"]
    assert until(stack, "ready", service=victim)["pid"] != pid


def test_an_interrupt_while_the_broker_starts_leaves_nothing(up, tmp_path):
    stack = up()
    deadline = time.monotonic() + 30
    while not (tmp_path / "broker/logs/console.log").exists():  # made right before the broker's process
        assert time.monotonic() < deadline
        time.sleep(0.01)
    stack.send_signal(signal.SIGINT)
    stack.communicate(timeout=60)
    assert nothing_runs(tmp_path)


def test_children_follow_a_killed_supervisor(up, tmp_path):
    stack = up()
    until(stack, "up")
    stack.send_signal(signal.SIGKILL)
    stack.wait()
    gone = psutil.wait_procs(marked_processes(tmp_path), timeout=40)[1] == []
    assert gone
    down = forgestream("down", "--state", tmp_path)  # the broker has no parent to follow
    down.communicate(timeout=60)
    assert down.returncode == 0
    assert nothing_runs(tmp_path)


def test_a_taken_port_is_named(tmp_path):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = forgestream("up", "--state", tmp_path, *SMALL[2:], "--set", f"assembler.port={port}")
        error = stack.communicate(timeout=60)[1]
    assert stack.returncode == 1
    assert f"assembler: port {port} on 127.0.0.1 is in use by pid {os.getpid()}" in error
    assert nothing_runs(tmp_path)


def _one_task(folder):
    path = folder / "tasks.jsonl"
    task = {"task_id": "a", "instruction": "Say 5.", "verifier": {"kind": "exact", "expected": "5"}}
    path.write_text(json.dumps(task))
    return path
