"""Workers of one queue, and who of them leads; what clients and scripts ask of a server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

from fastq import Client
from fastq.settings import Settings
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import Queue, settings_of, start

EVERY_SECOND = "* * * * * *"
# A lead falls vacant within 3 s, and slow machines must not fail a test.
LEAD_DEADLINE_S = 30


class Fleet:
    """Workers of one queue in this process. 1. starts them, 2. tells who leads, 3. ends them."""

    def __init__(self, server: Server, settings: Settings, client: Client) -> None:
        self.queue = Queue(server)
        self.settings = settings
        self.client = client
        self.workers: list[Worker] = []
        self._runs: list[asyncio.Task[None]] = []

    async def add(self) -> Worker:
        worker = Worker(self.settings)
        self._runs.append(await start(worker))
        self.workers.append(worker)
        return worker

    def leaders(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.serving and worker._leader.leads]

    def elected(self) -> str:
        """Whom the server has as the leader."""
        found = self.queue.redis.get(f"{self.queue.base}:leader")
        return cast(bytes, found or b"").decode()

    async def leader(self, *, other_than: Worker | None = None) -> Worker:
        """Waits until one leads, and no other does."""

        def alone() -> Worker | None:
            found = self.leaders()
            one = len(found) == 1 and found[0] is not other_than
            return found[0] if one and self.elected() == found[0].consumer else None

        found = await eventually(alone, LEAD_DEADLINE_S)
        assert found is not None
        return found

    async def close(self) -> None:
        for worker in self.workers:
            worker.ask_to_stop()
        await asyncio.gather(*self._runs)


@contextlib.asynccontextmanager
async def fleet(
    server: Server, size: int, *functions: Callable[..., Any], **settings: Any
) -> AsyncIterator[Fleet]:
    """So many workers with these functions and settings, and a client of their queue."""
    made = settings_of(server, *functions, **settings)
    async with Client.from_settings(made) as client:
        fleet = Fleet(server, made, client)
        try:
            for _ in range(size):
                await fleet.add()
            yield fleet
        finally:
            await fleet.close()


class Elsewhere:
    """A worker in a thread, on a loop of its own, which can be held up."""

    def __init__(self, settings: Settings) -> None:
        self.worker = Worker(settings)
        self._loop = asyncio.new_event_loop()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def leads(self) -> bool:
        return self.worker.serving and self.worker._leader.leads

    def hang(self) -> None:
        """Its loop turns no more until it may `go_on`."""
        self._loop.call_soon_threadsafe(self._go.wait, 2 * LEAD_DEADLINE_S)

    def go_on(self) -> None:
        self._go.set()

    async def close(self) -> None:
        self.go_on()
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            self._loop.call_soon_threadsafe(self.worker.ask_to_stop)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self.worker.run())


async def asked(server: Server, seconds: float) -> tuple[list[str], list[str]]:
    """The commands of the next seconds: those that clients send, and those that scripts call."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"*1\r\n$7\r\nMONITOR\r\n")
    await reader.readline()
    by_clients: list[str] = []
    by_scripts: list[str] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while line := (await reader.readline()).decode(errors="replace"):
                (by_scripts if " lua] " in line else by_clients).append(_command(line))
    writer.close()
    return by_clients, by_scripts


def _command(line: str) -> str:
    return line.split('"')[1].lower()


def now_ms(server: Server) -> int:
    seconds, micros = cast(tuple[int, int], server.client().time())
    return seconds * 1000 + micros // 1000
