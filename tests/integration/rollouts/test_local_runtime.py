"""Local processes for real: starts, limits, and that nothing is left."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import RuntimeFault
from rollouts.runtimes.base import Ended, Job, Script, Stop
from rollouts.runtimes.local import LocalLimits, LocalRuntime
from schemas import TaskFile
from tests.support.launchers import processes_with, until

LIMITS = LocalLimits(output_bytes=1_000_000, workspace_bytes=50_000_000, kill_grace_s=0.5)


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[LocalRuntime]:
    runtime = LocalRuntime(tmp_path, tmp_path / "harnesses", LIMITS)
    await runtime.start()
    yield runtime
    await runtime.close()
    assert processes_with(str(tmp_path)) == []


async def run(runtime: LocalRuntime, command: str, *, called: bool = True, **job: Any) -> Ended:
    event = asyncio.Event()
    if called:
        event.set()
    started: list[int] = []
    ended = await runtime.run(Job("r", 1, ("/bin/sh", "-c", command), job.pop("env", {}), **job), event, started.append)
    assert started == [ended.started_at_us]
    assert ended.started_at_us <= ended.exited_at_us
    return ended


async def test_a_process_gets_its_folders_input_and_a_bare_environment(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_LAUNCHER", "x")
    ended = await run(
        runtime,
        'cat; cat data; echo; pwd; echo "$MINE $HOME"; env | cut -d= -f1 | sort | tr "\\n" " "; echo e >&2; exit 3',
        env={"MINE": "mine"},
        stdin=b"input" * 100_000,
        workspace_files=(TaskFile(path="data", content=b"content"),),
    )
    assert (ended.exit_code, ended.stop, ended.stderr) == (3, None, b"e\n")
    places = runtime.places("r", 1)
    tail = ended.stdout[-400:].decode().split("inputcontent\n")[1].splitlines()
    assert tail[:2] == [places.workspace, f"mine {places.home}"]
    assert {"SECRET_OF_THE_LAUNCHER"}.isdisjoint(tail[2].split())
    assert {"PATH", "HOME", "MINE", "FORGESTREAM_RUNTIME"} <= set(tail[2].split())


async def test_cpu_and_memory_of_all_descendants_are_counted(runtime: LocalRuntime) -> None:
    burn = "python3 -c 'x = b\"1\" * 100_000_000; sum(range(8_000_000))'"
    ended = await run(runtime, f"(setsid {burn} &) ; sleep 0.1; {burn}")
    assert 0.05 < ended.cpu_s < 30
    assert ended.memory_peak_bytes > 100_000_000


@pytest.mark.parametrize(
    ("command", "job", "stop"),
    [
        ("sleep 300", {"wall_s": 0.3}, Stop.WALL),
        ("trap '' TERM; sleep 300", {"wall_s": 0.3}, Stop.WALL),
        ("sleep 300", {"startup_s": 0.3, "called": False}, Stop.STARTUP),
        ("sleep 0.5; exit 7", {"startup_s": 0.2, "called": True}, None),
        ("yes", {}, Stop.OUTPUT),
        ("yes >&2", {}, Stop.OUTPUT),
        ("head -c 60000000 /dev/zero > big || exit 9; exit 0", {}, None),
    ],
)
async def test_limits(runtime: LocalRuntime, command: str, job: dict[str, Any], stop: Stop | None) -> None:
    ended = await run(runtime, command, **job)
    assert ended.stop is stop
    assert len(ended.stdout) <= 1_000_000
    # one file cannot grow beyond the workspace's limit: the program that tries is told so, or killed
    assert not (Path(runtime.places("r", 1).workspace) / "big").exists() or ended.exit_code == 9


async def test_many_files_together_are_too_much_as_well(runtime: LocalRuntime) -> None:
    ended = await run(runtime, "for i in 1 2 3 4 5 6; do head -c 10000000 /dev/zero > $i; done; sleep 300")
    assert ended.stop is Stop.OUTPUT


async def test_a_program_that_does_not_exist_is_the_platforms_fault(runtime: LocalRuntime) -> None:
    with pytest.raises(RuntimeFault, match=r"cannot run /no/such: .*No such file"):
        await runtime.run(Job("r", 1, ("/no/such",), {}), asyncio.Event(), lambda _at: None)
    with pytest.raises(RuntimeFault, match="more than"):
        await runtime.run(Job("r", 1, ("/bin/true", "x" * 200_000), {}), asyncio.Event(), lambda _at: None)
    with pytest.raises(RuntimeFault, match=r"template process of no\.such\.module .*did not start"):
        await runtime.run(Job("r", 1, ("x",), {}, preload="no.such.module"), asyncio.Event(), lambda _at: None)
    assert (await run(runtime, "exit 0")).exit_code == 0


async def test_a_cancelled_run_ends_at_once(runtime: LocalRuntime, tmp_path: Path) -> None:
    running = asyncio.create_task(run(runtime, "trap '' TERM; (setsid sleep 300 &); sleep 300"))
    await until(lambda: len(processes_with("sleep\x00300")) >= 2, timeout_s=10)
    running.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await running
    assert processes_with("sleep\x00300") == []


async def test_a_killed_keeper_is_noticed_and_what_it_kept_is_ended(runtime: LocalRuntime) -> None:
    home = runtime.places("r", 1).home
    with pytest.raises(RuntimeFault, match="was killed while its process ran"):
        await run(runtime, "sleep 0.3; (setsid sleep 301 &); kill -9 $PPID; sleep 301")
    assert processes_with(home) == []


async def test_a_killed_template_is_replaced(runtime: LocalRuntime) -> None:
    await run(runtime, "exit 0")
    mark = runtime.mark["FORGESTREAM_RUNTIME"]
    await until(lambda: len(processes_with(mark)) == 1, timeout_s=10)  # the run's keeper may be a moment behind
    (template,) = processes_with(mark)
    os.kill(int(template.split()[0]), signal.SIGKILL)
    assert (await run(runtime, "exit 4")).exit_code == 4


async def test_leftovers_of_a_dead_launcher_are_ended_before_anything_starts(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path, tmp_path / "harnesses", LIMITS)
    left = subprocess.Popen(["/bin/sleep", "302"], env={**runtime.mark}, start_new_session=True)
    other = subprocess.Popen(["/bin/sleep", "303"], env={"FORGESTREAM_RUNTIME": "another"}, start_new_session=True)
    try:
        reaper = asyncio.create_task(asyncio.to_thread(left.wait))
        await runtime.start()
        assert await reaper == -signal.SIGKILL
        assert other.poll() is None
    finally:
        await runtime.close()
        other.kill()
        other.wait()


async def test_a_script_runs_on_a_copy(runtime: LocalRuntime) -> None:
    await run(runtime, "echo harness > a; echo harness > b")
    command = 'cat a b; echo x > a; cat "$ANSWER_FILE"; echo $EXTRA; (setsid sleep 304 &)'
    script = Script(
        "r",
        1,
        ("/bin/sh", "-c", command),
        (TaskFile(path="b", content=b"judge\n"),),
        {"EXTRA": "extra"},
        "answer\n",
        5.0,
    )
    ended = await runtime.run_script(script)
    assert (ended.exit_code, ended.timed_out) == (0, False)
    assert ended.stdout == b"harness\njudge\nanswer\nextra\n"
    workspace = Path(runtime.places("r", 1).workspace)
    assert [(workspace / name).read_text() for name in "ab"] == ["harness\n", "harness\n"]
    assert processes_with("sleep\x00304") == []
    await runtime.discard("r", 1)
    assert not workspace.exists()


async def test_sixteen_at_a_time_do_not_mix_up(runtime: LocalRuntime) -> None:
    async def one(number: int) -> bytes:
        job = Job(f"r{number}", 1, ("/bin/sh", "-c", "sleep 0.1; cat"), {}, stdin=str(number).encode())
        return (await runtime.run(job, asyncio.Event(), lambda _at: None)).stdout

    assert await asyncio.gather(*(one(number) for number in range(64))) == [str(n).encode() for n in range(64)]
