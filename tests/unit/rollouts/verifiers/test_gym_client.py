"""The reasoning-gym client against processes that do what reasoning-gym's must not."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from rollouts.errors import VerifierError, VerifierTimeout
from rollouts.options import OptionsError
from rollouts.verifiers.gym_client import GymWorker

PROGRAM = """
import json, os, sys, time
print(json.dumps({"value": ["words"]}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    match request.get("answer"):
        case "hang": time.sleep(100)
        case "die": os._exit(1)
        case "refuse": answer = {"error": "no such option (TypeError)", "input": True}
        case "fail": answer = {"error": "bug (KeyError)", "input": False}
        case _: answer = {"value": len(request["answer"]) + os.getpid() / 1e9}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
async def worker() -> AsyncIterator[GymWorker]:
    worker = GymWorker(command=(sys.executable, "-c", PROGRAM))
    yield worker
    await worker.close()


async def score(worker: GymWorker, answer: str, *, timeout_s: float = 20.0) -> float:
    return await worker.score("words", {}, 1, 0, answer, timeout_s=timeout_s)


async def test_one_process_serves_all(worker: GymWorker) -> None:
    scores = await asyncio.gather(*(score(worker, "a" * count) for count in range(8)))
    assert [int(value) for value in scores] == list(range(8))
    assert len({round(value % 1, 9) for value in scores}) == 1


async def test_a_process_that_hangs_is_replaced(worker: GymWorker) -> None:
    first = await score(worker, "x")
    with pytest.raises(VerifierTimeout, match=r"did not answer within 0\.2 s"):
        await score(worker, "hang", timeout_s=0.2)
    assert await score(worker, "x") != first


async def test_a_process_that_dies_is_replaced(worker: GymWorker) -> None:
    assert worker.pid is None
    first = await score(worker, "x")
    with pytest.raises(VerifierError, match="ended unexpectedly"):
        await score(worker, "die")
    assert await score(worker, "x") != first


async def test_one_that_died_between_requests_costs_nothing(worker: GymWorker) -> None:
    first = await score(worker, "x")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    assert await score(worker, "x") != first


async def test_bad_input_and_failures_are_told_apart(worker: GymWorker) -> None:
    with pytest.raises(OptionsError, match=r"config: words: no such option \(TypeError\)"):
        await score(worker, "refuse")
    with pytest.raises(VerifierError, match=r"reasoning-gym words: bug \(KeyError\)"):
        await score(worker, "fail")
    with pytest.raises(OptionsError, match="dataset: reasoning-gym has no data set 'numbers'"):
        await worker.score("numbers", {}, 1, 0, "x")


async def test_a_process_that_cannot_start_says_why() -> None:
    program = "import json; print(json.dumps({'error': 'install the extra'}))"
    worker = GymWorker(command=(sys.executable, "-c", program))
    with pytest.raises(VerifierError, match="install the extra"):
        await score(worker, "x")


async def test_it_can_be_started_ahead_and_closed_while_it_starts() -> None:
    worker = GymWorker(command=(sys.executable, "-c", PROGRAM))
    worker.warm_up()
    assert await score(worker, "x") > 1
    await worker.close()
    slow = GymWorker(command=(sys.executable, "-c", "import time; time.sleep(100)"))
    slow.warm_up()
    await asyncio.sleep(0.3)
    started = slow.pid
    await slow.close()
    assert started is not None
    with pytest.raises(ProcessLookupError):
        os.kill(started, 0)
