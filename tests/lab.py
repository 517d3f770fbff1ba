"""A server that wants a password, a client in haste and a worker, for errors to be provoked on."""

from __future__ import annotations

import asyncio
from typing import Any

import fastq
from fastq import Client, Context, Job, Reject, Retry, WorkerSettings
from fastq.worker import Worker
from servers import Server
from workers import start

SECRET = "s3cret/@#%é"
HASTE_S = 0.6


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def fail(text: str) -> None:
    raise LookupError(text)


async def again() -> None:
    raise Retry("busy", defer=0)


async def refuse(text: str) -> None:
    raise Reject(text)


async def uncarried() -> object:
    return object()


async def belied() -> int:
    return "text"  # type: ignore[return-value]


@fastq.job(keep_result=0)
async def unkept() -> None: ...


class Lab:
    """A server, a client in haste, and if asked for a worker; `job` is the one that it is about."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.redis = server.client()
        self.client = Client(server.url(), connect_timeout=HASTE_S)
        self.job: Job[Any] | None = None
        self.port = server.port
        self._worker: Worker | None = None
        self._run: asyncio.Task[None] | None = None

    def settings(self, **values: Any) -> type[WorkerSettings]:
        functions = (add, sleep, fail, again, refuse, uncarried, belied, unkept)
        values = {"functions": functions, "redis": self.server.url(), **values}
        return type("Worker", (WorkerSettings,), values)

    async def work(self) -> None:
        self._worker = Worker(self.settings())
        self._run = await start(self._worker)

    async def result(
        self, *call: Any, timeout: float = 10, limit: float = 60, **options: Any
    ) -> Any:
        """Enqueues a job, runs a worker, and waits for the result."""
        await self.work()
        self.job = await self.client.options(timeout=limit, **options).enqueue(*call)
        return await self.job.result(timeout=timeout)

    async def close(self) -> None:
        if self._worker is not None and self._run is not None:
            self._worker.ask_to_stop()
            self._worker.ask_to_stop()
            await self._run
        await self.client.close()
