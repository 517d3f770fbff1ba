"""Stopping: nothing is lost, nothing is charged, and the worker is gone when it says so."""

import asyncio
import contextlib
import random
from typing import Any

import pytest

import fastq
from fastq import Context, JobFailed
from servers import Server
from stage import RELEASED, SOON_S, Jobs, Stage, stage
from waiting import eventually
from workers import DEADLINE_S


@pytest.fixture
def jobs() -> Any:
    jobs = Jobs()
    yield jobs
    jobs.thread_go.set()


async def quick() -> str:
    return "quick"


@pytest.mark.servers
async def test_a_short_job_ends_and_a_long_one_is_handed_back(server: Server, jobs: Jobs) -> None:
    async def short() -> str:
        await asyncio.sleep(0.2)
        return "short"

    async with stage(server, jobs.long, short) as on:
        long = await on.client.enqueue(jobs.long)
        await jobs.has(1)
        brief = await on.client.enqueue(short)
        await eventually(lambda: len(on.queue.pending()) == 2)
        assert await on.stop(1) < 1 + SOON_S
        assert await brief.result(DEADLINE_S) == "short"
        assert (jobs.cancelled, on.worker.failed, on.worker.threads_left) == (1, 0, False)
        on.check_handed_back(long)
        on.check_gone()
        assert await long.status() == "queued"


@pytest.mark.servers
async def test_a_long_sync_job_is_handed_back_too(server: Server, jobs: Jobs) -> None:
    async with stage(server, jobs.thread) as on:
        long = await on.client.enqueue(jobs.thread)
        await jobs.has(1)
        # A thread cannot be cancelled, so it gets no time to clean up either.
        assert await on.stop(0.3) < 0.3 + SOON_S
        assert on.worker.threads_left
        on.check_handed_back(long)
        on.check_gone()
        jobs.thread_go.set()


async def test_what_a_handed_back_thread_returns_is_dropped(server: Server, jobs: Jobs) -> None:
    async with stage(server, jobs.thread) as on:
        long = await on.client.enqueue(jobs.thread)
        await jobs.has(1)
        await on.stop(0)
        jobs.thread_go.set()
        await eventually(lambda: not len(on.worker._executor.running))
        on.check_handed_back(long)


async def test_hundreds_are_handed_back_in_pages(server: Server, jobs: Jobs) -> None:
    async with stage(server, jobs.long, max_jobs=600) as on:
        handles = await on.client.enqueue_many(fastq.call(jobs.long) for _ in range(600))
        await jobs.has(600)
        await on.stop(0)
        on.check_handed_back(*handles)
        on.check_gone()


@pytest.mark.parametrize("end", ["return", "raise"])
async def test_what_a_job_does_when_it_is_cancelled(server: Server, jobs: Jobs, end: str) -> None:
    async with stage(server, jobs.stubborn) as on:
        job = await on.client.enqueue(jobs.stubborn, end)
        await jobs.has(1)
        await on.stop(0)
        if end == "return":  # it has done its work
            assert await job.result(DEADLINE_S) == "value"
            assert on.queue.pending() == {}
        else:
            on.check_handed_back(job)
        on.check_gone()


async def test_a_job_that_fails_while_it_is_waited_for_has_failed(
    server: Server, jobs: Jobs
) -> None:
    async def fail(ctx: Context) -> None:
        await jobs.long(ctx)
        raise ValueError("really")

    for how in ("stop", "cancel"):
        async with stage(server, fail) as on:
            jobs.go.clear()
            job = await on.client.enqueue(fail)
            await eventually(lambda: on.queue.pending())
            stopping = asyncio.ensure_future(on.worker.stop())
            if how == "cancel":
                on.run.cancel()
            await asyncio.sleep(0.05)
            jobs.go.set()
            with pytest.raises(JobFailed, match="really"):
                await job.result(DEADLINE_S)
            await stopping
            assert (on.queue.pending(), on.worker.failed) == ({}, 1)


async def test_a_job_that_ignores_its_cancellation_is_handed_back(
    server: Server, jobs: Jobs
) -> None:
    async def ignore(ctx: Context) -> None:
        jobs.running += 1
        while not jobs.go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await jobs.go.wait()

    async with stage(server, ignore) as on:
        job = await on.client.enqueue(ignore)
        await jobs.has(1)
        await on.stop(0)
        on.check_handed_back(job)
        on.check_gone()
        jobs.go.set()


async def test_a_job_over_its_limit_is_not_handed_back(server: Server, jobs: Jobs) -> None:
    async with stage(server, fastq.job(jobs.thread, name="late", timeout=0.1)) as on:
        job = await on.client.enqueue("late")
        with pytest.raises(fastq.JobTimeout):
            await job.result(DEADLINE_S)
        await on.stop(0)
        assert on.queue.pending() == {}
        assert len(on.queue.dead()) == 1
        on.check_gone()


async def test_entries_read_in_the_last_moment_are_not_started(server: Server) -> None:
    async with stage(server, quick) as on:
        # The reader blocks at the server; what it brings after this is not wanted.
        on.worker.quiet()
        job = await on.client.enqueue(quick)
        await on.stop()
        assert await job.status() == "queued"
        assert on.queue.pending() in ({}, {job.id: (RELEASED, 0)})
        on.check_gone()


async def test_ends_are_told_before_the_worker_is_gone(server: Server) -> None:
    async with stage(server, quick, max_jobs=50) as on:
        handles = await on.client.enqueue_many(fastq.call(quick) for _ in range(2_000))
        await handles[10].result(DEADLINE_S)
        await on.stop()
        statuses = [await job.status() for job in handles]
        assert set(statuses) <= {"complete", "queued"}
        assert statuses.count("queued") == on.queue.length()
        on.check_gone()


@pytest.mark.servers
async def test_nothing_is_lost_at_any_moment_of_a_stop(server: Server) -> None:
    rounds = 20 if server.name.startswith("valkey") else 3
    for seed in range(rounds):
        server.empty()
        await one_stop(server, random.Random(seed))


async def one_stop(server: Server, dice: random.Random) -> None:
    ran: list[str] = []
    in_threads: set[str] = set()

    async def work(ctx: Context, pause_s: float) -> None:
        if pause_s > 0.001:
            await asyncio.sleep(pause_s)
        ran.append(ctx.job_id)

    def sync_work(ctx: Context) -> None:
        in_threads.add(ctx.job_id)
        ran.append(ctx.job_id)

    async with stage(server, work, sync_work, max_jobs=dice.choice([3, 30])) as on:
        handles: list[fastq.Job[Any]] = []

        async def produce() -> None:
            for n in range(40):
                call = fastq.call(work, dice.choice([0, 0, 0.02, 0.2]))
                some = [call, fastq.call(sync_work) if n % 4 == 0 else call]
                handles.extend(await on.client.enqueue_many(some * 5))

        producing = asyncio.ensure_future(produce())
        await asyncio.sleep(dice.uniform(0, 0.1))
        hurry = dice.random() < 0.5
        await on.stop(0 if hurry else dice.uniform(0, 0.1))
        await producing
        on.check_gone()
        results = check_nothing_lost(on, [job.id for job in handles])
        assert len(set(ran)) == len(ran)
        assert results <= set(ran)
        # The end of a thread's job may come too late to be told: that one runs again.
        assert set(ran) - results <= in_threads


def check_nothing_lost(on: Stage, ids: list[str]) -> set[str]:
    """Each job has a result or waits; returns those with a result."""
    results = {job_id for job_id in ids if on.queue.result_ttl_ms(job_id) > 0}
    pending = on.queue.pending()
    assert set(pending.values()) <= {(RELEASED, 0)}
    assert on.queue.dead() == []
    assert on.queue.length() == len(ids) - len(results)
    assert not results & pending.keys()
    return results
