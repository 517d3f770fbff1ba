"""A burst and jobs that are deferred: what is due belongs to it, what is not does not hold it."""

import asyncio
from datetime import timedelta

import pytest

import fastq
from fastq import Client, Context, Retry
from servers import Server
from test_burst import burst, check_empty
from waiting import eventually
from workers import Queue


async def pair(ctx: Context, n: int) -> int:
    return n


async def later(ctx: Context, times: int, defer_s: float) -> int:
    if ctx.tries < times:
        raise Retry(defer=defer_s)
    return ctx.tries


@fastq.job(retry_on=(ValueError,), max_tries=3, backoff=lambda tries: 0.05 * tries)
async def fail() -> None:
    raise ValueError("no")


@pytest.mark.servers
async def test_jobs_that_are_due_are_part_of_it(server: Server) -> None:
    """Also where another leads, so that this worker's own leader does not promote them."""
    queue = Queue(server)
    queue.redis.set(f"{queue.base}:leader", "somebody:1:else", px=60_000)
    async with Client(server.url()) as client:
        due = client.options(defer_by=0.001)
        jobs = await due.enqueue_many(fastq.call(pair, n) for n in range(300))
        check_empty(await burst(server, pair, max_jobs=7))
        assert [await job.result(1) for job in jobs] == list(range(300))
    assert queue.redis.zcard(f"{queue.base}:deferred") == 0


async def test_jobs_that_are_not_due_do_not_hold_it(server: Server) -> None:
    async with Client(server.url()) as client:
        far = await client.options(defer_by=timedelta(hours=1)).enqueue(pair, 1)
        done = await client.enqueue(pair, 2)
        check_empty(await burst(server, pair))
        assert (await far.status(), await done.status()) == ("deferred", "complete")


@pytest.mark.servers
@pytest.mark.parametrize("defer_s", [0, 0.3])
async def test_retries_of_jobs_that_it_has_run_hold_it(server: Server, defer_s: float) -> None:
    async with Client(server.url()) as client:
        jobs = await client.enqueue_many([fastq.call(later, 3, defer_s)] * 5)
        worker = await burst(server, later)
        assert [await job.result(1) for job in jobs] == [3] * 5
    check_empty(worker)
    assert worker.failed == 0


async def test_a_retry_that_fails_for_good_is_a_failure_of_it(server: Server) -> None:
    async with Client(server.url()) as client:
        job = await client.enqueue(fail)
        worker = await burst(server, fail)
        assert await job.status() == "failed"
    assert worker.failed == 1
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"retries"]


async def test_a_job_of_an_unknown_function_holds_it_until_it_is_dead(server: Server) -> None:
    async with Client(server.url()) as client:
        job = await client.enqueue("nobody")
        worker = await burst(server, pair)
        assert await job.status() == "failed"
    assert worker.failed == 1


async def test_a_retry_that_another_worker_takes_does_not_hold_it_for_ever(server: Server) -> None:
    """It is gone from the deferred jobs, and the stream is empty: nothing is left to wait for."""
    queue = Queue(server)

    async def taken(ctx: Context) -> None:
        raise Retry(defer=0.2)

    async def steal() -> None:
        await eventually(lambda: queue.redis.zrem(f"{queue.base}:deferred", job.id))

    async with Client(server.url()) as client:
        job = await client.enqueue(taken)
        await asyncio.gather(steal(), burst(server, taken))
