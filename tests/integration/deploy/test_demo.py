"""`forgestream demo --quick`: the whole loop, with every service and a tiny model."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy.local.kafka import find_running
from deploy.local.processes import marked_processes

ROOT = Path(__file__).parents[3]


@pytest.fixture
def demo(tmp_path):
    started = []

    def demo(*arguments):
        command = [sys.executable, "-m", "deploy.cli", "demo", "--quick", "--json", "--state", tmp_path, *arguments]
        process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
        started.append(process)
        return process

    yield demo
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def wait_for_line(process, text):
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"the demo never said {text!r}")


def nothing_runs(state):
    return not marked_processes(state) and find_running(state / "broker") is None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_quick_demo_trains_and_loses_nothing(demo, tmp_path):
    process = demo("--steps", "4")
    out, error = process.communicate(timeout=500)
    assert process.returncode == 0, error
    result = json.loads(out.splitlines()[-1])
    assert (result["lost"], result["doubled"]) == (0, 0)
    assert (result["steps"], result["policy_version"]) == (4, 4)
    assert result["rollouts"] == result["completions"] == result["trajectories"]
    versions = {(row["policy_version"], row["held_out"]): row["rollouts"] for row in result["reward_by_version"]}
    assert versions[0, True] == 32  # eight questions, four samples each, all of version 0
    assert versions[4, True] == 32
    assert sum(versions.values()) == result["rollouts"]
    assert 0 <= result["delta_mean"] < 1
    phases = {"start", "evaluate_before", "train", "evaluate_after", "drain", "stop", "total"}
    assert set(result["wall_s"]) == phases
    assert "reward by policy version" in error
    assert nothing_runs(tmp_path / "demo")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["broker ready", "proxy ready", "step 1"])
def test_ctrl_c_at_any_moment_is_a_clean_stop(demo, tmp_path, moment):
    process = demo()
    wait_for_line(process, moment)
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    process.communicate(timeout=90)
    assert process.returncode == 130
    assert time.monotonic() - began < 60
    assert nothing_runs(tmp_path / "demo")
