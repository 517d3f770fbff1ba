"""Jobs that count their own runs, on a server that the test does not break.

So that lost and doubled are numbers, whatever happens to the queue's own server.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import redis

from fastq import Client, Context, Job, WorkerSettings
from fastq.connection import Connection, connect
from fastq.functions import call
from fastq.redis_settings import RedisSettings
from fastq.settings import Settings
from fastq.worker import Worker
from servers import Server
from waiting import eventually

COUNTER = "FASTQ_TEST_COUNTER"
_RAN = "ran"
_DEADLINE_S = 30


async def count(ctx: Context, pause_s: float = 0.0) -> str:
    """Counts this run, works for a while, and returns its id."""
    counter = cast(Mapping[str, Connection], ctx.state)["counter"]
    await counter.call("HINCRBY", _RAN, ctx.job_id, 1)
    await asyncio.sleep(pause_s)
    return ctx.job_id


async def fail(ctx: Context) -> None:
    """Counts this run, and ends badly."""
    await count(ctx)
    raise ValueError("on purpose")


@contextlib.asynccontextmanager
async def counting(settings: Any) -> AsyncIterator[dict[str, Connection]]:
    """A lifespan: a connection to the server that counts."""
    counter = await connect(RedisSettings.from_url(os.environ[COUNTER]), reply_deadline_s=60)
    yield {"counter": counter}
    counter.close()


class Counted(WorkerSettings):
    """`fastq-worker counted:Counted --redis URL` is a worker in a process of its own."""

    functions = (count, fail)
    lifespan = counting
    shutdown_timeout = 1


class Tally:
    """What ran how often."""

    def __init__(self, server: Server) -> None:
        self._client = server.client()

    def runs(self) -> dict[str, int]:
        found = cast(dict[bytes, bytes], self._client.hgetall(_RAN))
        return {job_id.decode(): int(times) for job_id, times in found.items()}

    def __len__(self) -> int:
        return cast(int, self._client.hlen(_RAN))

    def doubled(self) -> int:
        """Runs that were too many."""
        return sum(times - 1 for times in self.runs().values())

    async def all_once(self, jobs: list[Job[str]]) -> None:
        """Each of these jobs brings its own result, and ran once."""
        async with asyncio.timeout(_DEADLINE_S):
            results = await asyncio.gather(*(job.result() for job in jobs))
        ids = [job.id for job in jobs]
        assert results == ids
        runs = self.runs()
        assert {job_id: runs.get(job_id, 0) for job_id in ids} == dict.fromkeys(ids, 1)


@contextlib.asynccontextmanager
async def working(url: str, **settings: Any) -> AsyncIterator[Worker]:
    """A worker in this process; it must live to the end of the block."""
    worker = Worker(Settings.read(Counted, redis=url, **settings))
    running = asyncio.ensure_future(worker.run())
    try:
        await eventually(lambda: worker.serving or running.done())
        yield worker
        assert not running.done(), "the worker died"
    finally:
        worker.ask_to_stop()
        worker.ask_to_stop()
        await running


async def enqueue(client: Client, number: int, pause_s: float = 0.0) -> list[Job[str]]:
    return await client.enqueue_many([call(count, pause_s) for _ in range(number)])


def left_over(server: Server, queue: str = "default") -> tuple[int, int]:
    """Entries and pending entries of a queue; -1 pending ones while there is no group."""
    client, stream = server.client(), f"{{fastq:{queue}}}:stream"
    try:
        pending = cast(dict[str, int], client.xpending(stream, "fastq"))["pending"]
    except redis.ResponseError:
        pending = -1
    return cast(int, client.xlen(stream)), pending


def kill_named(server: Server, ending: str) -> int:
    """CLIENT KILL of the connections whose names end so; how many there were."""
    client = server.client()
    found = cast(list[dict[str, str]], client.client_list())
    ids = [one["id"] for one in found if one["name"].endswith(ending)]
    for number in ids:
        with contextlib.suppress(redis.ResponseError):
            client.client_kill_filter(_id=number)
    return len(ids)
