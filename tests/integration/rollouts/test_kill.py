"""A launcher that is killed at any moment repeats no finished rollout, forgets none, and leaves no process."""

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from ingest.kafka.settings import KafkaSettings
from schemas import EndReason, RolloutEventKind
from tests.support.launchers import (
    SECRET,
    LauncherProcess,
    events_by_rollout,
    exact_task,
    finished,
    launcher,
    processes_with,
    produce,
    until,
)
from tests.support.standin_proxy import Reply, standin_proxy

TASKS = [exact_task(f"task{number}", "yes", group_size=4, evaluation=number % 2 == 0) for number in range(10)]


@pytest.mark.parametrize(
    ("seed", "kills"),
    [(1, 2), pytest.param(2, 3, marks=pytest.mark.slow), pytest.param(3, 3, marks=pytest.mark.slow)],
)
async def test_sigkill_at_any_moment(kafka: KafkaSettings, tmp_path: Path, seed: int, kills: int) -> None:
    dice = random.Random(seed)
    answers = random.Random(seed)

    def script(_bearer: object, _messages: object) -> Reply:
        return Reply("yes", delay_s=answers.uniform(0.05, 1.5))

    async with standin_proxy(kafka, SECRET, script) as proxy:
        await produce(kafka, TASKS)
        for _ in range(kills):
            before = len(proxy.requests)
            process = LauncherProcess(kafka, tmp_path / "state", proxy.url, tmp_path / "log", max_running=6)
            try:
                await until(lambda before=before: len(proxy.requests) > before, timeout_s=40)
                await asyncio.sleep(dice.uniform(0.0, 1.5))
                await process.end(signal.SIGKILL)
                # nobody looks for its harnesses yet: they see by themselves that it is gone
                await until(lambda: not processes_with(str(tmp_path / "state")), timeout_s=5)
            finally:
                process.close()
        killed = await events_by_rollout(kafka)
        done_before = [name for name, told in killed.items() if told[-1].kind is RolloutEventKind.FINISHED]
        assert done_before, "the kills came before anything was finished: nothing was tested"
        assert len(done_before) < 40, "the kills came after everything was finished: nothing was tested"
        async with launcher(kafka, tmp_path / "state", proxy.url):
            events = await finished(kafka, TASKS)
            await asyncio.sleep(1.0)  # for anything that would still be repeated
        events = await events_by_rollout(kafka)
    assert len(events) == 40
    for name, told in events.items():
        kinds = Counter(event.kind for event in told)
        assert kinds[RolloutEventKind.FINISHED] == 1, name
        assert told[-1].kind is RolloutEventKind.FINISHED
        assert (told[-1].end_reason, told[-1].reward) == (EndReason.COMPLETED, 1.0)
        begun = [event.attempt for event in told if event.kind is RolloutEventKind.SCHEDULED]
        assert begun == list(range(1, len(begun) + 1)), "an attempt's number was used twice, or left out"
        assert told[-1].attempt == begun[-1]
    assert {name: len(events[name]) for name in done_before} == {name: len(killed[name]) for name in done_before}
    assert processes_with(str(tmp_path)) == []


async def test_sigterm_ends_rollouts_quickly_and_they_run_again(kafka: KafkaSettings, tmp_path: Path) -> None:
    tasks = [exact_task("slow", "yes", group_size=2)]
    delays = [60.0, 60.0]

    def script(_bearer: object, _messages: object) -> Reply:
        return Reply("yes", delay_s=delays.pop() if delays else 0.0)

    async with standin_proxy(kafka, SECRET, script) as proxy:
        await produce(kafka, tasks)
        process = LauncherProcess(kafka, tmp_path / "state", proxy.url, tmp_path / "log")
        try:
            await until(lambda: len(proxy.requests) == 2, timeout_s=30)
            async with asyncio.timeout(5):
                assert await process.end(signal.SIGTERM) == 0
        finally:
            process.close()
        assert processes_with(str(tmp_path)) == []
        async with launcher(kafka, tmp_path / "state", proxy.url):
            events = await finished(kafka, tasks)
    assert [told[-1].attempt for told in events.values()] == [2, 2]
    assert sorted(p.name for p in (tmp_path / "state/rollouts").iterdir()) == ["lock"]
