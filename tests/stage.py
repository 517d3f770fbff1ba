"""A worker that is stopped, the jobs that it runs meanwhile, and what must be left."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import fastq
from fastq import Client, Context
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
