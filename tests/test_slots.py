"""Slots: as many jobs at once as a worker has, never more, and none is held that does not run."""

import asyncio
import contextlib
import threading
import time
from collections import Counter
from typing import Any

import fastq
from fastq import Client, Context
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, Queue, settings_of, start, working

# The gates are for machines that do other work at the same time. Figures of an idle one: see each.
BUSY = 4


class Meter:
    """How many jobs run, and how many did at most."""

    def __init__(self) -> None:
        self.now = self.most = self.ran = 0
        self.lock = threading.Lock()

    def __enter__(self) -> None:
        with self.lock:
            self.now += 1
            self.ran += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.now -= 1


def meter_of(worker: Worker) -> Meter:
    found = worker._executor._scope.state
    assert isinstance(found, Meter)
    return found


async def nap(ctx: Context, pause_s: float) -> None:
    with ctx.state:
        await asyncio.sleep(pause_s)


def nap_sync(ctx: Context, pause_s: float) -> None:
    with ctx.state:
        time.sleep(pause_s)


@contextlib.asynccontextmanager
async def metered(settings: Any) -> Any:
    yield Meter()


async def timed(client: Client, function: Any, number: int) -> float:
    """Seconds from the first enqueue to the last result."""
    began_s = time.monotonic()
    jobs = await client.enqueue_many(fastq.call(function, 0.1) for _ in range(number))
    await asyncio.gather(*(job.result(DEADLINE_S) for job in jobs))
    return time.monotonic() - began_s


async def test_a_thousand_naps_take_ten_turns(server: Server) -> None:
    async with working(server, nap, max_jobs=100, lifespan=metered) as (client, worker):
        took_s = await timed(client, nap, 1000)
        meter = meter_of(worker)
    print(f"1,000 naps of 0.1 s at max_jobs=100: {took_s:.2f} s (idle machine: 1.0 to 1.3)")
    assert meter.most == 100
    assert 1.0 <= took_s < 1.3 * BUSY


async def test_sync_jobs_run_in_as_many_threads(server: Server) -> None:
    async with working(server, nap_sync, max_jobs=100, lifespan=metered) as (client, worker):
        took_s = await timed(client, nap_sync, 100)
        meter = meter_of(worker)
    print(f"100 sync naps of 0.1 s at max_jobs=100: {took_s:.2f} s (idle machine: under 0.5)")
    assert meter.ran == 100
    assert 0.1 <= took_s < 0.5 * BUSY


async def test_never_more_than_max_jobs_run_or_are_held(server: Server) -> None:
    functions = (nap, nap_sync)
    async with working(server, *functions, max_jobs=7, lifespan=metered) as (client, worker):
        calls = [fastq.call(functions[n % 2], n % 5 / 1000) for n in range(300)]
        jobs = await client.enqueue_many(calls)
        running, queue = worker._executor.running, Queue(server)
        while queue.length():
            assert len(running) <= 7
            # A settle and the read for its slot are on two connections: the read may be first.
            assert len(queue.pending()) <= 2 * 7
            await asyncio.sleep(0)
        for job in jobs:
            await job.result(DEADLINE_S)
        assert meter_of(worker).most <= 7


async def test_a_full_worker_reads_nothing(server: Server) -> None:
    go = asyncio.Event()

    async def wait() -> None:
        await go.wait()

    async with working(server, wait, max_jobs=5) as (client, worker):
        await client.enqueue_many(fastq.call(wait) for _ in range(50))
        await eventually(lambda: len(worker._executor.running) == 5)
        assert not worker._fetcher.reading
        assert len(Queue(server).pending()) == 5
        go.set()
        await eventually(lambda: Queue(server).length() == 0)


async def test_a_slot_that_is_free_is_used_at_once(server: Server) -> None:
    """Also while all others are taken for long."""
    go = asyncio.Event()

    async def wait() -> None:
        await go.wait()

    async with working(server, wait, nap, max_jobs=3, lifespan=metered) as (client, _):
        long = await client.enqueue_many([fastq.call(wait)] * 2)
        jobs = await client.enqueue_many([fastq.call(nap, 0.0)] * 200)
        for job in jobs:
            await job.result(DEADLINE_S)
        assert [await job.status() for job in long] == ["running"] * 2
        go.set()
        for job in long:
            await job.result(DEADLINE_S)


async def share(server: Server, max_jobs: int, number: int, pause_s: float) -> list[Meter]:
    """Runs jobs on three workers; what each of them did."""
    settings, queue = settings_of(server, nap, max_jobs=max_jobs, lifespan=metered), Queue(server)
    workers = [Worker(settings) for _ in range(3)]
    runs = [await start(worker) for worker in workers]
    async with Client.from_settings(settings) as client:
        await client.enqueue_many(fastq.call(nap, pause_s) for _ in range(number))
        while queue.length():
            held = Counter(consumer for consumer, _ in queue.pending().values())
            assert all(count <= 2 * max_jobs for count in held.values())
            await asyncio.sleep(0.02)
    for worker, run in zip(workers, runs, strict=True):
        await worker.stop()
        await run
    return [meter_of(worker) for worker in workers]


async def test_three_workers_share_long_jobs_evenly(server: Server) -> None:
    meters = await share(server, max_jobs=100, number=300, pause_s=1.0)
    assert [meter.ran for meter in meters] == [100, 100, 100]


async def test_no_worker_hoards(server: Server) -> None:
    meters = await share(server, max_jobs=50, number=500, pause_s=0.3)
    counts = [meter.ran for meter in meters]
    print("500 jobs on 3 workers x 50:", counts)
    assert sum(counts) == 500
    assert [meter.most for meter in meters] == [50, 50, 50]
    assert min(counts) >= 100
    assert max(counts) <= 250
