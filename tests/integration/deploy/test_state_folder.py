import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from deploy.errors import AlreadyRunning
from deploy.local.processes import marked_environment, marked_processes
from deploy.local.statefile import hold_state, running_stack

ROOT = Path(__file__).parents[3]

HOLDER = """
import subprocess, sys, time
from pathlib import Path
from deploy.local.processes import marked_environment
from deploy.local.statefile import hold_state

state = Path(sys.argv[1])
with hold_state(state):
    for _ in range(2):
        subprocess.Popen(["sleep", "300"], env=marked_environment(state), start_new_session=True)
    print("holding", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), tmp_path],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.readline() == b"holding\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_stack_is_told_who_holds_the_folder(holder, tmp_path):
    with pytest.raises(AlreadyRunning, match=rf"pid {holder.pid}\): `forgestream down` stops it"), hold_state(tmp_path):
        pass
    assert running_stack(tmp_path).pid == holder.pid


def test_what_a_killed_stack_left_is_reaped_by_the_next(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert running_stack(tmp_path) is None
    assert len(marked_processes(tmp_path)) == 2
    with hold_state(tmp_path):
        assert marked_processes(tmp_path) == []
        assert running_stack(tmp_path).pid == os.getpid()
    assert running_stack(tmp_path) is None


def test_only_the_processes_of_this_folder_are_its_own(tmp_path):
    other = subprocess.Popen(["sleep", "60"], env=marked_environment(tmp_path / "other"))
    try:
        time.sleep(0.1)
        assert marked_processes(tmp_path) == []
        assert [p.pid for p in marked_processes(tmp_path / "other")] == [other.pid]
    finally:
        other.kill()
        other.wait()
