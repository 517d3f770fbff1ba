"""Workers in the test's own process, and what can be seen of their queue from outside."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest

from fastq import Client, Job, JobFailed, WorkerSettings
from fastq.settings import Settings
from fastq.worker import Worker
from servers import Server
from waiting import eventually

DEADLINE_S = 30


def settings_of(server: Server, *functions: Callable[..., Any], **more: Any) -> Settings:
    """The settings of a worker that runs these functions."""
    values = {"functions": functions, "redis": server.url(), "shutdown_timeout": 5, **more}
    return Settings.read(type("Made", (WorkerSettings,), values))


async def start(worker: Worker) -> "asyncio.Task[None]":
    """Runs a worker; returns once it beats and reads, or has ended."""
    run = asyncio.ensure_future(worker.run())
    await eventually(lambda: run.done() or (worker.serving and worker._fetcher.reading))
    return run


@contextlib.asynccontextmanager
async def working(
    server: Server, *functions: Callable[..., Any], **more: Any
) -> AsyncIterator[tuple[Client, Worker]]:
    """A worker with these functions and settings, and a client of its queue."""
    settings = settings_of(server, *functions, **more)
    worker = Worker(settings)
    run = await start(worker)
    try:
        async with Client.from_settings(settings) as client:
            yield client, worker
    finally:
        worker.ask_to_stop()
        await run


async def ended(job: Job[Any]) -> str:
    """Waits for the job's end, good or bad, and returns its status."""
    return await eventually(lambda: _end_of(job), DEADLINE_S)


async def _end_of(job: Job[Any]) -> str:
    status = await job.status()
    return status if status in ("complete", "failed") else ""


async def failure(job: Job[Any]) -> JobFailed:
    """Waits for the job's end, which has to be a bad one."""
    with pytest.raises(JobFailed) as caught:
        await job.result(DEADLINE_S)
    return caught.value


async def still_works(client: Client) -> bool:
    """True if the worker runs `add`."""
    return bool(await (await client.enqueue("add", 1, 2)).result(DEADLINE_S) == 3)


class Queue:
    """A queue as its server has it."""

    def __init__(self, server: Server, name: str = "default") -> None:
        self.redis = server.client()
        self.base = f"{{fastq:{name}}}"
        self.stream = f"{self.base}:stream"

    def length(self) -> int:
        return cast(int, self.redis.xlen(self.stream))

    def pending(self) -> dict[str, tuple[str, int]]:
        """Id -> consumer and number of deliveries."""
        found = cast(
            list[dict[str, Any]],
            self.redis.xpending_range(self.stream, "fastq", "-", "+", 100_000),
        )
        return {
            one["message_id"].decode(): (one["consumer"].decode(), one["times_delivered"])
            for one in found
        }

    def consumers(self) -> list[str]:
        found = cast(list[dict[str, Any]], self.redis.xinfo_consumers(self.stream, "fastq"))
        return [one["name"].decode() for one in found]

    def beats(self) -> list[str]:
        found = cast(list[bytes], self.redis.zrange(f"{self.base}:beats", 0, -1))
        return [name.decode() for name in found]

    def dead(self) -> list[dict[str, bytes]]:
        """The fields of the dead entries, oldest first."""
        found = cast(list[tuple[bytes, dict[bytes, bytes]]], self.redis.xrange(f"{self.base}:dead"))
        return [{key.decode(): value for key, value in fields.items()} for _, fields in found]

    def add(self, **fields: str | bytes) -> str:
        """A raw entry."""
        return cast(bytes, self.redis.xadd(self.stream, cast(Any, fields))).decode()

    def result_ttl_ms(self, job_id: str) -> int:
        """-1 if it is kept for ever, -2 if there is none."""
        return cast(int, self.redis.pttl(f"{self.base}:result:{job_id}"))

    def keys(self) -> set[str]:
        return {key.decode() for key in cast(list[bytes], self.redis.keys())}
