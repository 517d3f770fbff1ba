"""Stopping: nothing is lost, nothing is charged, and the worker is gone when it says so."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import fastq
from fastq import Client, Context, JobFailed
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, Queue, settings_of, start

RELEASED = "released"
# Slow machines must not fail a test: these tell "at once" from "after a time-out".
SOON_S = 2.0


class Jobs:
    """Jobs that the test steers, and what became of them."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = 0
        self.cancelled = 0
        self.thread_go = threading.Event()

    async def long(self, ctx: Context) -> str:
        self.running += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"

    def thread(self, ctx: Context) -> str:
        self.running += 1
        self.thread_go.wait(DEADLINE_S)
        return "done"

    async def stubborn(self, ctx: Context, end: str) -> str:
        """Cleans up after its cancellation, and then ends in this way."""
        self.running += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
            if end == "raise":
                raise ValueError("cleaning up failed") from None
        return "value"

    async def has(self, number: int) -> None:
        await eventually(lambda: self.running == number)


@pytest.fixture
def jobs() -> Any:
    jobs = Jobs()
    yield jobs
    jobs.thread_go.set()


class Stage:
    """A worker, its task, its queue, a client that outlives it."""

    def __init__(self, server: Server, client: Client, worker: Worker, run: Any) -> None:
        self.queue = Queue(server)
        self.client = client
        self.worker = worker
        self.run = run

    async def stop(self, timeout: float | None = None) -> float:
        """How long it took, in seconds."""
        began_s = time.monotonic()
        await self.worker.stop(timeout)
        await self.run
        return time.monotonic() - began_s

    def check_gone(self) -> None:
        assert self.worker.consumer not in self.queue.consumers()
        assert self.worker.consumer not in self.queue.beats()
        assert not self.queue.redis.exists(f"{self.queue.base}:consumer:{self.worker.consumer}")

    def check_handed_back(self, *handles: fastq.Job[Any]) -> None:
        """Under their ids, uncharged, and nothing is said of them."""
        assert self.queue.pending() == {job.id: (RELEASED, 0) for job in handles}
        assert self.queue.dead() == []
        assert all(self.queue.result_ttl_ms(job.id) == -2 for job in handles)


@contextlib.asynccontextmanager
async def stage(
    server: Server, *functions: Callable[..., Any], **settings: Any
) -> AsyncIterator[Stage]:
    made = settings_of(server, *functions, **settings)
    async with Client.from_settings(made) as client:
        worker = Worker(made)
        stage = Stage(server, client, worker, await start(worker))
        try:
            yield stage
        finally:
            worker.ask_to_stop()
            worker.ask_to_stop()
            await asyncio.wait((stage.run,))


async def quick() -> str:
    return "quick"


# What becomes of jobs


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


# Quiet


@pytest.mark.servers
async def test_a_quiet_worker_takes_nothing_and_ends_what_it_has(
    server: Server, jobs: Jobs
) -> None:
    async with stage(server, jobs.long, quick) as on:
        long = await on.client.enqueue(jobs.long)
        await jobs.has(1)
        on.worker.quiet()
        job = await on.client.enqueue(quick)
        await eventually(lambda: not on.worker._fetcher.reading)
        # If the read that was under way still got it, it does not stay with this worker.
        await eventually(lambda: on.queue.pending().get(job.id, (RELEASED, 0)) == (RELEASED, 0))
        other = await on.client.enqueue(quick)
        jobs.go.set()
        assert await long.result(DEADLINE_S) == "done"
        assert not on.run.done()
        assert [await each.status() for each in (job, other)] == ["queued", "queued"]
        assert other.id not in on.queue.pending()


async def test_quiet_before_the_start_is_remembered(server: Server) -> None:
    settings = settings_of(server, quick)
    async with Client.from_settings(settings) as client:
        job = await client.enqueue(quick)
        worker = Worker(settings)
        worker.quiet()
        run = asyncio.ensure_future(worker.run())
        await eventually(lambda: Queue(server).beats())
        await worker.stop()
        await run
        assert await job.status() == "queued"


# Ways to stop


async def test_an_idle_worker_is_gone_at_once(server: Server) -> None:
    async with stage(server, quick) as on:
        assert await on.stop() < SOON_S  # 0.2 s on an idle machine
        on.check_gone()


async def test_cancelling_run_stops_in_order(server: Server, jobs: Jobs) -> None:
    async with stage(server, jobs.long, shutdown_timeout=0.2) as on:
        job = await on.client.enqueue(jobs.long)
        await jobs.has(1)
        on.run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await on.run
        on.check_handed_back(job)
        on.check_gone()


async def test_cancelling_run_lets_short_jobs_end(server: Server, jobs: Jobs) -> None:
    async with stage(server, jobs.long) as on:
        job = await on.client.enqueue(jobs.long)
        await jobs.has(1)
        on.run.cancel()
        await asyncio.sleep(0.05)
        jobs.go.set()
        await asyncio.wait((on.run,))
        assert on.run.cancelled()
        assert await job.result(DEADLINE_S) == "done"
        on.check_gone()


@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_asked_twice_it_hurries(server: Server, jobs: Jobs, how: str) -> None:
    async with stage(server, jobs.long, shutdown_timeout=DEADLINE_S * 10) as on:
        job = await on.client.enqueue(jobs.long)
        await jobs.has(1)
        for _ in range(2):
            # Whatever step it is in by now.
            await asyncio.sleep(random.uniform(0, 0.02))
            on.run.cancel() if how == "cancel" else on.worker.ask_to_stop()
        await asyncio.wait((on.run,), timeout=DEADLINE_S)
        assert on.run.cancelled() is (how == "cancel")
        on.check_handed_back(job)
        on.check_gone()


async def test_a_task_that_was_cancelled_before_may_run_a_worker(server: Server) -> None:
    async def fail() -> None:
        raise ValueError

    async def twice() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        await worker.run()

    settings = settings_of(server, fail)
    worker = Worker(settings)
    run = asyncio.ensure_future(twice())
    async with Client.from_settings(settings) as client:
        with pytest.raises(JobFailed):
            await (await client.enqueue(fail)).result(DEADLINE_S)
    await worker.stop()
    await run


@pytest.mark.parametrize("turns", range(6))
async def test_stopped_while_it_starts(server: Server, turns: int) -> None:
    worker = Worker(settings_of(server, quick))
    run = asyncio.ensure_future(worker.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    await asyncio.wait_for(worker.stop(), DEADLINE_S)
    await run
    with pytest.raises(RuntimeError, match="runs once"):
        await worker.run()


async def test_the_loop_being_torn_down_hands_jobs_back(server: Server, jobs: Jobs) -> None:
    """As `asyncio.run` does when its main ends or Ctrl-C comes: all tasks are cancelled at once."""
    for times in range(5):
        async with stage(server, jobs.long, jobs.thread, quick, max_jobs=9) as on:
            jobs.running = 0
            handles = [await on.client.enqueue(f) for f in (jobs.long, jobs.thread, jobs.long)]
            done = await on.client.enqueue(quick)
            assert await done.result(DEADLINE_S) == "quick"
            await jobs.has(3)
            own = asyncio.current_task()
            tasks = [task for task in asyncio.all_tasks() if task is not own]
            random.Random(times).shuffle(tasks)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=DEADLINE_S)
            assert on.run.cancelled()
            on.check_handed_back(*handles)
            on.check_gone()
        on.queue.redis.delete(on.queue.stream)


# Without Redis


async def test_it_stops_while_redis_is_away(make_server: Callable[..., Server], jobs: Jobs) -> None:
    server = make_server()
    for fate in (server.pause, server.kill):
        async with stage(server, jobs.long) as on:
            await on.client.enqueue(jobs.long)
            await eventually(lambda: jobs.running > 0)
            fate()
            # 3 s for all steps together, and a little for a busy machine.
            assert await on.stop(0) < 3 + SOON_S
        if fate == server.pause:
            server.resume()


async def test_a_redis_that_is_back_in_time_is_told(
    make_server: Callable[..., Server], jobs: Jobs
) -> None:
    server = make_server("valkey-9.1", "--appendonly", "yes")
    async with stage(server, jobs.long) as on:
        job = await on.client.enqueue(jobs.long)
        await jobs.has(1)
        server.kill()
        stopping = asyncio.ensure_future(on.stop(0))
        await eventually(lambda: on.worker._closing)
        server.start()
        await stopping
        on.check_handed_back(job)
        on.check_gone()


async def test_it_stops_where_redis_never_was(server: Server) -> None:
    settings = settings_of(server, quick, redis="redis://127.0.0.1:1/0")
    worker = Worker(settings)
    run = asyncio.ensure_future(worker.run())
    await eventually(lambda: worker.serving)
    await asyncio.wait_for(worker.stop(), DEADLINE_S)
    await run


# Under load


@pytest.mark.servers
async def test_nothing_is_lost_at_any_moment_of_a_stop(server: Server) -> None:
    rounds = 20 if server.name.startswith("valkey") else 3
    for seed in range(rounds):
        server.empty()
        await one_stop(server, random.Random(seed))


async def one_stop(server: Server, dice: random.Random) -> None:
    ran: list[str] = []

    async def work(ctx: Context, pause_s: float) -> None:
        if pause_s > 0.001:
            await asyncio.sleep(pause_s)
        ran.append(ctx.job_id)

    def sync_work(ctx: Context) -> None:
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
        check_nothing_lost(on, [job.id for job in handles], ran)


def check_nothing_lost(on: Stage, ids: list[str], ran: list[str]) -> None:
    results = {job_id for job_id in ids if on.queue.result_ttl_ms(job_id) > 0}
    pending = on.queue.pending()
    assert set(pending.values()) <= {(RELEASED, 0)}
    assert on.queue.dead() == []
    assert on.queue.length() == len(ids) - len(results)
    assert not results & pending.keys()
    # Who ran to the end has a result, once; the others wait.
    assert sorted(ran) == sorted(results)
