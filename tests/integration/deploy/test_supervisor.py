import asyncio
import os
import signal
import socket
from contextlib import asynccontextmanager

import pytest

from deploy.errors import StackFailed
from deploy.local.processes import marked_processes
from deploy.local.supervisor import Supervisor


@asynccontextmanager
async def supervisor():
    events = []
    running = Supervisor(events.append)
    running.seen = lambda: [(e.service, e.change) for e in events]
    running.events = events
    try:
        yield running
    finally:
        await running.stop([list(running.ready)])


async def until(condition, timeout_s=15.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.05)


async def test_services_become_ready_and_stop_in_the_order_of_the_stages(spec):
    async with supervisor() as stack:
        for name in ("first", "second", "third"):
            stack.start(spec(name=name))
        await stack.wait_ready("first", "second", "third")
        assert stack.ready == {"first": True, "second": True, "third": True}
        await stack.stop([["second"], ["third", "first"], ["never-started"]])
        stopped = [name for name, change in stack.seen() if change == "stopped"]
        assert stopped[0] == "second"
        assert sorted(stopped) == ["first", "second", "third"]
        assert stack.pids == {}


async def test_a_killed_service_comes_back(spec):
    async with supervisor() as stack:
        stack.start(spec())
        await stack.wait_ready("sample")
        before = stack.pids["sample"]
        os.kill(before, signal.SIGKILL)
        await until(lambda: stack.seen()[-1] == ("sample", "ready") and stack.pids.get("sample") != before)
        assert stack.restarts == {"sample": 1}
        crashed = next(e for e in stack.events if e.change == "crashed")
        assert "was killed by SIGKILL" in crashed.message


async def test_a_service_that_crashes_once_is_ready_in_the_end(spec):
    async with supervisor() as stack:
        stack.start(spec("crashes-once"))
        await stack.wait_ready("sample")
        crashed = next(e for e in stack.events if e.change == "crashed")
        assert "ended with status 1" in crashed.message
        assert "no space left on device" in crashed.message


async def test_a_crash_loop_ends_the_stack_with_the_log(spec, monkeypatch):
    monkeypatch.setattr("deploy.local.supervisor.BACKOFF_S", (0.01,))
    async with supervisor() as stack:
        stack.start(spec("crashing"))
        with pytest.raises(
            StackFailed, match=r"crashed 5 times in a row, giving up.*no space left on device"
        ) as caught:
            await stack.wait_ready("sample")
        assert '"event": "failed"' in str(caught.value)  # the tail of the log
        assert stack.restarts == {"sample": 4}


async def test_bad_input_is_not_tried_again(spec):
    async with supervisor() as stack:
        stack.start(spec("refusing"))
        with pytest.raises(StackFailed, match=r"status 2.*setting sample.x: must be positive"):
            await stack.wait_ready("sample")
        assert stack.restarts == {"sample": 0}


async def test_a_service_that_never_gets_ready_is_named_with_its_log(spec):
    async with supervisor() as stack:
        stack.start(spec("silent", ready_timeout_s=2.0))
        with pytest.raises(StackFailed, match=r"sample is not ready after 2 s; see .*sample\.log"):
            await stack.wait_ready("sample")


async def test_a_taken_port_is_named_with_its_holder(spec):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        async with supervisor() as stack:
            with pytest.raises(
                StackFailed, match=rf"port {taken.getsockname()[1]} .* pid {os.getpid()} .*--ports auto"
            ):
                stack.start(spec(port=taken.getsockname()[1]))


async def test_a_command_that_does_not_exist(spec):
    async with supervisor() as stack:
        broken = spec()
        object.__setattr__(broken, "command", ["/no/such/program"])
        stack.start(broken)
        with pytest.raises(StackFailed, match=r"sample cannot be started: .*/no/such/program"):
            await stack.wait_ready("sample")


async def test_a_stubborn_service_and_its_children_are_killed(spec, tmp_path):
    async with supervisor() as stack:
        stack.start(spec("stubborn", name="stubborn", stop_timeout_s=0.5))
        stack.start(spec("with-child", name="parent"))
        await stack.wait_ready("stubborn", "parent")
        assert len(marked_processes(tmp_path)) == 3
        await stack.stop([["stubborn", "parent"]])
        assert marked_processes(tmp_path) == []


async def test_a_stop_right_after_the_start_leaves_nothing(spec, tmp_path):
    async with supervisor() as stack:
        stack.start(spec())
        await stack.stop([["sample"]])
        assert stack.pids == {}
        assert marked_processes(tmp_path) == []
