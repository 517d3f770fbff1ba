"""Time limits: told at once, and the slot is held by what does not end."""

import asyncio
import threading
import time

import pytest

import fastq
from fastq import Context, JobTimeout
from servers import Server
from workers import DEADLINE_S, Queue, failure, still_works, working


async def add(x: int, y: int) -> int:
    return x + y


async def test_a_job_over_its_limit_is_cancelled(server: Server) -> None:
    seen: list[str] = []

    @fastq.job(timeout=0.2)
    async def hang() -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with working(server, hang, add, max_jobs=1) as (client, _):
        with pytest.raises(JobTimeout) as caught:
            await (await client.enqueue(hang)).result(DEADLINE_S)
        assert await still_works(client)
    assert caught.value.message == "ran longer than its time limit of 0.2 s"
    assert seen == ["cancelled"]
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"timeout"]


async def test_the_limit_may_come_from_anywhere(server: Server) -> None:
    async def hang(wait_s: float) -> str:
        await asyncio.sleep(wait_s)
        return "in time"

    short = fastq.job(hang, name="short", timeout=0.1)
    endless = fastq.job(hang, name="endless", timeout=None)
    async with working(server, hang, short, endless, job_timeout=0.2) as (client, _):
        plain = await client.enqueue(hang, DEADLINE_S)
        long = await client.options(timeout=DEADLINE_S).enqueue(short, 0.5)
        free = await client.options(timeout=None).enqueue(hang, 0.5)
        own = await client.options(timeout=0.1).enqueue(endless, DEADLINE_S)
        free_too = await client.enqueue(endless, 0.5)
        for job, limit in ((plain, "0.2 s"), (own, "0.1 s")):
            error = await failure(job)
            assert isinstance(error, JobTimeout)
            assert error.message.endswith(limit)
        assert [await job.result(DEADLINE_S) for job in (long, free, free_too)] == ["in time"] * 3


class Stubborn:
    """A job that does not end when it is cancelled, before it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cancelled = 0

    async def run(self, ctx: Context) -> str:
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        return "late"


async def test_a_job_that_ignores_its_end_holds_its_slot(server: Server) -> None:
    job = Stubborn()
    run = fastq.job(job.run, name="run", timeout=0.1)
    async with working(server, run, add, max_jobs=1) as (client, worker):
        stuck = await client.enqueue("run")
        assert isinstance(await failure(stuck), JobTimeout)
        waiting = await client.enqueue(add, 1, 2)
        assert Queue(server).pending() == {}
        assert len(worker._executor.running) == 1
        assert await waiting.status() == "queued"
        job.go.set()
        assert await waiting.result(DEADLINE_S) == 3
        assert isinstance(await failure(stuck), JobTimeout)
        assert (worker._executor.late, job.cancelled) == (1, 1)
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"timeout"]


@pytest.mark.parametrize("end", ["return", "raise"])
async def test_what_a_job_does_after_its_limit_does_not_count(server: Server, end: str) -> None:
    async def swallow() -> str:
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            if end == "raise":
                raise ValueError("something else") from None
        return "late"

    async with working(server, fastq.job(swallow, timeout=0.1), add) as (client, _):
        error = await failure(await client.enqueue("swallow"))
        assert isinstance(error, JobTimeout)
        assert ("something else" in error.traceback) is (end == "raise")
        assert await still_works(client)
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"timeout"]


async def test_a_sync_job_over_its_limit_holds_its_slot(server: Server) -> None:
    go = threading.Event()

    @fastq.job(timeout=0.2)
    def block() -> str:
        go.wait(DEADLINE_S)
        return "late"

    async with working(server, block, add, max_jobs=1) as (client, worker):
        began_s = time.monotonic()
        stuck = await client.enqueue(block)
        assert isinstance(await failure(stuck), JobTimeout)
        assert time.monotonic() - began_s < 5
        waiting = await client.enqueue(add, 1, 2)
        assert (len(worker._executor.running), Queue(server).pending()) == (1, {})
        assert await waiting.status() == "queued"
        go.set()
        assert await waiting.result(DEADLINE_S) == 3
        assert worker._executor.late == 1
        assert isinstance(await failure(stuck), JobTimeout)


async def test_a_job_that_blocks_the_loop_is_over_its_limit_all_the_same(server: Server) -> None:
    @fastq.job(timeout=0.1)
    async def block() -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - what it should not do
        await asyncio.sleep(DEADLINE_S)

    async with working(server, block, add) as (client, _):
        assert isinstance(await failure(await client.enqueue(block)), JobTimeout)
        assert await still_works(client)
