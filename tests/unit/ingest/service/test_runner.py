import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

SERVICE = """
import asyncio, sys, time
from ingest.service.context import ServiceContext
from ingest.service.errors import ServiceError
from ingest.service.runner import run_service
from ingest.service.settings import ServiceSettings

async def main(ctx: ServiceContext) -> None:
    mode = sys.argv[1]
    if mode == "error":
        raise ServiceError("disk full: free some space")
    if mode == "bug":
        raise ZeroDivisionError("oops")
    if mode == "stuck":
        ctx.ready()
        time.sleep(60)
    ctx.ready()
    await ctx.stopping.wait()
    if mode == "slow":
        await asyncio.sleep(60)

sys.exit(run_service("sample", main, ServiceSettings(port=int(sys.argv[2])), grace_s=float(sys.argv[3])))
"""


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "service.py"
    script.write_text(SERVICE)
    started = []

    def start(mode, port=0, grace_s=30.0):
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
        process = subprocess.Popen(
            [sys.executable, script, mode, str(port), str(grace_s)], stderr=subprocess.PIPE, text=True, env=environment
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


def next_event(process, event):
    for line in process.stderr:
        record = json.loads(line)
        if record["event"] == event:
            return record
    raise AssertionError(f"no {event} in the log")


def get(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_a_service_is_ready_measured_and_stops_on_sigterm(start):
    process = start("wait")
    starting = next_event(process, "starting")
    next_event(process, "ready")
    assert starting["service"] == "sample"
    assert starting["pid"] == process.pid

    status, body = get(starting["port"], "/readyz")
    assert status == 200
    assert json.loads(body) == {"service": "sample", "pid": process.pid, "ready": True, "reason": None}
    assert get(starting["port"], "/livez")[0] == 200
    assert b"process_resident_memory_bytes" in get(starting["port"], "/metrics")[1]

    process.send_signal(signal.SIGTERM)
    assert next_event(process, "stopping")["signal"] == "SIGTERM"
    assert process.wait(5) == 0


def test_a_stopping_service_is_not_ready(start):
    process = start("slow")
    port = next_event(process, "starting")["port"]
    next_event(process, "ready")
    process.send_signal(signal.SIGINT)
    next_event(process, "not ready")
    status, body = get(port, "/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "stopping")


@pytest.mark.parametrize("mode", ["slow", "stuck"])
def test_a_second_signal_ends_it_at_once(start, mode):
    process = start(mode)
    next_event(process, "ready")
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 128 + signal.SIGTERM


def test_a_service_that_does_not_stop_in_time_is_ended(start):
    process = start("slow", grace_s=0.3)
    next_event(process, "ready")
    process.send_signal(signal.SIGTERM)
    next_event(process, "did not stop in time, ending hard")
    assert process.wait(5) == 128 + signal.SIGTERM


def test_an_expected_error_is_one_line_and_its_status(start):
    process = start("error")
    failed = next_event(process, "failed")
    assert failed["error"] == "disk full: free some space"
    assert process.wait(5) == 1


def test_a_bug_leaves_its_traceback_and_status_70(start):
    process = start("bug")
    assert "ZeroDivisionError: oops" in next_event(process, "crashed")["exception"]
    assert process.wait(5) == 70


def test_a_taken_port_is_named_with_the_way_out(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start("wait", port=port)
        failed = next_event(process, "failed")
        assert f"port {port} on 127.0.0.1 is in use" in failed["error"]
        assert "FORGESTREAM_SAMPLE__PORT" in failed["error"]
        assert process.wait(5) == 3
