"""A burst: ends when there is nothing left to do, and leaves nothing behind."""

import asyncio
import gc
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

import fastq
from fastq import Client, Context
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import Queue, settings_of

# Memory is looked at over this many jobs; a leak of 60 bytes a job shows at 100,000.
MEMORY_JOBS = int(os.environ.get("FASTQ_TEST_MEMORY_JOBS", "20000"))
MAY_GROW_BYTES = 6 * 1024 * 1024


async def nothing() -> None: ...


async def pair(ctx: Context, n: int) -> int:
    return n


def sync() -> None: ...


async def fail() -> None:
    raise ValueError("no")


async def tree(ctx: Context, depth: int) -> None:
    """Enqueues two more of its kind, the last thing that it does."""
    if depth:
        await asyncio.sleep(0.02)
        await ctx.client.enqueue_many([fastq.call(tree, depth - 1)] * 2)


async def burst(server: Server, *functions: Callable[..., Any], **more: Any) -> Worker:
    worker = Worker(settings_of(server, *functions, burst=True, **more))
    await worker.run()
    return worker


def check_empty(worker: Worker) -> None:
    """No map of the worker holds anything of the jobs that it has run."""
    executor, settler = worker._executor, worker._settler
    assert len(executor.running) == 0
    assert executor.running.free == worker.settings.max_jobs
    assert (settler.unanswered, settler.ids(), settler._kept, settler._refused) == (0, [], {}, [])
    assert (executor._unfinished, len(worker._surplus)) == ([], 0)


@pytest.mark.servers
async def test_a_burst_ends_when_all_is_done(server: Server) -> None:
    queue = Queue(server)
    async with Client(server.url()) as client:
        await client.enqueue_many(fastq.call(pair, n) for n in range(500))
        await client.enqueue_many([fastq.call(nothing), fastq.call(sync)] * 100)
        await client.options(keep_result=0).enqueue(nothing)
        await client.enqueue(fail)
    worker = await burst(server, pair, nothing, sync, fail, max_jobs=20)
    check_empty(worker)
    assert worker.failed == 1
    assert (queue.length(), queue.pending(), queue.consumers(), queue.beats()) == (0, {}, [], [])
    keys = queue.keys()
    results = [key for key in keys if key.startswith(f"{queue.base}:result:")]
    assert len(results) == 701
    assert keys - set(results) == {"fastq:queues", queue.stream, f"{queue.base}:dead"}


async def test_an_empty_queue_ends_it_at_once(server: Server) -> None:
    began_s = time.monotonic()
    check_empty(await burst(server, nothing))
    assert time.monotonic() - began_s < 4  # idle machine: some ms


async def test_a_burst_that_keeps_nothing_leaves_nothing(server: Server) -> None:
    async with Client(server.url()) as client:
        await client.enqueue_many(fastq.call(nothing) for _ in range(100))
    await burst(server, nothing, keep_result=0)
    queue = Queue(server)
    assert queue.keys() == {"fastq:queues", queue.stream}


@pytest.mark.servers
@pytest.mark.parametrize("max_jobs", [1, 3, 100])
async def test_jobs_that_running_jobs_enqueue_are_part_of_it(server: Server, max_jobs: int) -> None:
    async with Client(server.url()) as client:
        await client.enqueue(tree, 4)
    await burst(server, tree, max_jobs=max_jobs)
    queue = Queue(server)
    assert (queue.length(), queue.pending()) == (0, {})
    assert len(queue.keys()) == 2 + 31


async def test_a_burst_can_be_stopped(server: Server) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    async with Client(server.url()) as client:
        jobs = await client.enqueue_many([fastq.call(hang)] * 20)
    worker = Worker(settings_of(server, hang, burst=True, max_jobs=5))
    run = asyncio.ensure_future(worker.run())
    queue = Queue(server)
    await eventually(lambda: queue.beats() and len(queue.pending()) == 5)
    await worker.stop(0)
    await run
    assert set(queue.pending().values()) == {("released", 0)}
    assert (len(queue.pending()), queue.length()) == (5, 20)
    assert {queue.result_ttl_ms(job.id) for job in jobs} == {-2}


async def test_memory_does_not_grow_with_jobs(server: Server) -> None:
    async def round_of(number: int) -> int:
        async with Client(server.url()) as client:
            calls = (fastq.call(pair, n) for n in range(number))
            await client.enqueue_many(calls, handles=False)
        check_empty(await burst(server, pair, keep_result=1))
        gc.collect()
        rss: int = psutil.Process().memory_info().rss
        return rss

    await round_of(MEMORY_JOBS // 2)  # what is made once, and the allocator's own pools
    before, after = await round_of(2_000), await round_of(MEMORY_JOBS)
    print(f"RSS over {MEMORY_JOBS} jobs: {(after - before) / 1024:+.0f} KiB")
    assert after - before < MAY_GROW_BYTES
    assert Queue(server).length() == 0
