"""The thread that does blocking jobs."""

import asyncio
import threading

import pytest

from ingest.kafka.jobs import JobThread


async def test_jobs_run_in_order_on_one_other_thread() -> None:
    jobs = JobThread("test")
    jobs.start()
    names: list[tuple[int, str]] = []
    await asyncio.gather(
        *(jobs.submit(lambda i=i: names.append((i, threading.current_thread().name))) for i in range(5))
    )
    jobs.stop(RuntimeError("over"))
    assert names == [(i, "test") for i in range(5)]


async def test_an_error_belongs_to_its_caller() -> None:
    jobs = JobThread("test")
    jobs.start()
    with pytest.raises(ZeroDivisionError):
        await jobs.submit(lambda: 1 / 0)
    assert await jobs.submit(lambda: 7) == 7
    jobs.stop(RuntimeError("over"))


async def test_a_long_job_serves_others_but_not_those_that_must_be_alone() -> None:
    jobs = JobThread("test")
    jobs.start()
    done: list[str] = []
    both_queued = threading.Event()

    def long() -> None:
        both_queued.wait(5)
        assert jobs.serve(1.0) is False  # nothing waits
        assert jobs.serve(1.0) is True  # the one that must be alone does
        done.append("long")

    running = jobs.submit(long, alone=True)
    short = jobs.submit(lambda: done.append("short"))
    alone = jobs.submit(lambda: done.append("alone"), alone=True)
    both_queued.set()
    await asyncio.gather(running, short, alone)
    jobs.stop(RuntimeError("over"))
    assert done == ["short", "long", "alone"]


async def test_after_the_end_every_job_fails_with_the_reason() -> None:
    jobs = JobThread("test")
    jobs.start()
    release = threading.Event()
    running = jobs.submit(lambda: release.wait(5))
    queued = jobs.submit(lambda: "never")
    jobs.stop(RuntimeError("over"))
    later = jobs.submit(lambda: "never")
    release.set()
    assert await running is True
    for future in (queued, later):
        with pytest.raises(RuntimeError, match="over"):
            await future
