"""Ways to stop: in order, in a hurry, while it starts, without Redis; and to be quiet."""

import asyncio
import contextlib
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest

import fastq
from fastq import Client, JobFailed
from fastq.worker import Worker
from servers import Server
from stage import RELEASED, SOON_S, Jobs, stage
from waiting import eventually
from workers import DEADLINE_S, Queue, settings_of


@pytest.fixture
def jobs() -> Any:
    jobs = Jobs()
    yield jobs
    jobs.thread_go.set()


async def quick() -> str:
    return "quick"


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


INTERRUPTED = """
import asyncio, sys
from fastq import WorkerSettings
from fastq.worker import Worker

async def interrupt():
    await asyncio.sleep(0)
    raise KeyboardInterrupt

async def long():
    await asyncio.sleep(600)

class Settings(WorkerSettings):
    functions = [interrupt, long]
    redis = sys.argv[1]
    shutdown_timeout = 0.1

asyncio.run(Worker(Settings).run())
"""


async def test_a_keyboard_interrupt_in_a_job_hands_all_back(server: Server) -> None:
    """Where nobody handles SIGINT it comes up in whatever runs: that job has not failed."""
    queue = Queue(server)
    async with Client(server.url()) as client:
        calls = [fastq.call("long"), fastq.call("interrupt"), fastq.call("long")]
        handles = await client.enqueue_many(calls)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", INTERRUPTED, server.url(), stderr=asyncio.subprocess.PIPE
    )
    _, said = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert said.splitlines()[-1:] == [b"KeyboardInterrupt"], said.decode()
    assert queue.pending() == {job.id: (RELEASED, 0) for job in handles}
    assert (queue.dead(), queue.consumers(), queue.beats()) == ([], [RELEASED], [])


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
