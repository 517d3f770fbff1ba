"""`lifespan`: it is around all jobs, and what it raises is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import fastq
from fastq import Context
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, Queue, settings_of, start, working


async def add(x: int, y: int) -> int:
    return x + y


async def test_lifespan_is_around_all_jobs(server: Server) -> None:
    events: list[str] = []
    go = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(settings: Any) -> AsyncIterator[list[str]]:
        events.append("enter")
        await asyncio.sleep(0.01)
        yield events
        events.append("exit")

    async def job(ctx: Context) -> None:
        await go.wait()
        ctx.state.append("job")

    async with working(server, job, lifespan=lifespan) as (client, worker):
        await client.enqueue(job)
        await eventually(lambda: len(worker._executor.running) == 1)
        stopping = asyncio.ensure_future(worker.stop())
        await asyncio.sleep(0)
        go.set()
        await stopping
    assert events == ["enter", "job", "exit"]


async def test_lifespan_gets_the_settings_as_they_were_written(server: Server) -> None:
    @contextlib.asynccontextmanager
    async def check(settings: Any) -> AsyncIterator[None]:
        assert settings is Mine
        yield

    class Mine(fastq.WorkerSettings):
        functions = (add,)
        redis = server.url()
        lifespan = check

    worker = Worker(Mine)
    run = await start(worker)
    assert worker.serving
    await worker.stop()
    await run


async def test_without_a_state_it_is_empty(server: Server) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(settings: Any) -> AsyncIterator[None]:
        yield

    async def job(ctx: Context) -> Any:
        return ctx.state

    async with working(server, job, lifespan=lifespan) as (client, _):
        assert await (await client.enqueue(job)).result(DEADLINE_S) == {}


@pytest.mark.parametrize("where", ["enter", "exit"])
async def test_what_lifespan_raises_comes_out_of_run(server: Server, where: str) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(settings: Any) -> AsyncIterator[None]:
        if where == "enter":
            raise LookupError("no database")
        yield
        raise LookupError("no goodbye")

    worker = Worker(settings_of(server, add, lifespan=lifespan))
    run = await start(worker)
    assert worker.serving is (where == "exit")
    await worker.stop()
    with pytest.raises(LookupError):
        await run
    queue = Queue(server)
    if where == "exit":
        assert (queue.consumers(), queue.beats()) == ([], [])


async def test_lifespan_is_left_when_the_worker_cannot_start(server: Server) -> None:
    left: list[bool] = []

    @contextlib.asynccontextmanager
    async def lifespan(settings: Any) -> AsyncIterator[None]:
        try:
            yield
        finally:
            left.append(True)

    settings = settings_of(server, add, lifespan=lifespan, burst=True, redis="redis://127.0.0.1:1")
    with pytest.raises(fastq.FastqError, match="Redis is away"):
        await Worker(settings).run()
    assert left == [True]


async def test_a_stop_during_lifespan_s_start_waits_for_it(server: Server) -> None:
    go = asyncio.Event()
    events: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(settings: Any) -> AsyncIterator[None]:
        await go.wait()
        events.append("entered")
        yield
        events.append("left")

    worker = Worker(settings_of(server, add, lifespan=lifespan))
    run = asyncio.ensure_future(worker.run())
    stopping = asyncio.ensure_future(worker.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    go.set()
    await asyncio.wait_for(stopping, DEADLINE_S)
    await run
    assert events == ["entered", "left"]
