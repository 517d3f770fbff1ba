"""The halves of a worker that neither wait nor run anything: for tests that make each step."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import hiredis

from fastq import Client
from fastq._core import CallbackWaiter, ReplyError, Run, SettleBatch, Waiter, Wire
from fastq.clock import RedisClock
from fastq.context import JobScope
from fastq.executor import Executor
from fastq.keys import QueueKeys
from fastq.settings import Settings
from fastq.settler import Settler
from servers import Server

T = TypeVar("T")
Entry = list[Any]

_LONG_AGO_MS = -(10**14)
_FULL = ReplyError("EXECABORT Transaction discarded because of previous errors.")


def field(entry: Entry, name: bytes) -> bytes | None:
    """A field of an entry `[id, [field, value, ...]]`."""
    fields: list[bytes] = entry[1]
    for i in range(0, len(fields), 2):
        if fields[i] == name:
            return fields[i + 1]
    return None


def id_of(entry: Entry) -> str:
    job_id: bytes = field(entry, b"i") or entry[0]
    return job_id.decode()


def tries_of(entry: Entry) -> int:
    """Which run this is."""
    return int(field(entry, b"t") or 0) + 1


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that never has to wait."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waits")


class Line:
    """A connection that blocks.

    1. Is one for `Script.call`, and for a settler, whose requests go out with `flush`.
    2. Notes what was sent and answered.
    3. Refuses batches of successes while it is `full`, as a server without memory does.
    """

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self._wire = Wire()
        self._reader = hiredis.Reader(replyError=ReplyError, notEnoughData=Ellipsis)
        self.full: Settler | None = None
        self.said: list[bytes] = []
        self.heard: list[Any] = []

    def close(self) -> None:
        self._socket.close()

    def ask(self, packed: bytes, count: int = 1) -> list[Any]:
        """Sends requests that get so many replies; raises the first that is an error."""
        self.said.append(packed)
        self._socket.sendall(packed)
        replies: list[Any] = []
        while len(replies) < count:
            replies += self._replies(self._received())
        return self._hear(replies)

    async def request(self, packed: bytes) -> Any:
        return self.ask(packed)[0]

    def send(self, packed: bytes, waiter: Waiter) -> None:
        if self.full is not None and isinstance(waiter, SettleBatch):
            self.full._batch_answered(waiter, _FULL)
            return
        self.said.append(packed)
        self._wire.send(packed, waiter)

    def call_back(self, packed: bytes, callback: Callable[[Any], object]) -> None:
        self.send(packed, CallbackWaiter(callback))

    def flush(self) -> list[Any]:
        """The replies to what a settler has sent."""
        replies: list[Any] = []
        self._socket.sendall(self._wire.take_output())
        while len(self._wire):
            data = self._received()
            replies += self._replies(data)
            self._wire.feed(data)
        return self._hear(replies)

    def _received(self) -> bytes:
        data = self._socket.recv(1 << 16)
        assert data, "the server has closed the connection"
        return data

    def _replies(self, data: bytes) -> list[Any]:
        self._reader.feed(data)
        return list(iter(self._reader.gets, Ellipsis))

    def _hear(self, replies: list[Any]) -> list[Any]:
        for reply in replies:
            if isinstance(reply, ReplyError):
                raise reply
        self.heard += replies
        return replies


class _StillExecutor(Executor):
    """Starts jobs, and stops there."""

    def _spawner(self) -> Callable[..., Any]:
        def spawn(coroutine: Coroutine[Any, Any, None], name: str) -> None:
            coroutine.close()

        return spawn


class Hand:
    """What a worker does with entries: 1. takes them, 2. ends their runs when it is told to.

    It holds them as they were read, whoever has claimed them since: then it is a zombie.
    """

    def __init__(self, name: str, settings: Settings, client: Client, line: Line) -> None:
        self.name = name
        self.held: dict[bytes, Entry] = {}
        self._clock = RedisClock()
        scope = JobScope(settings.queue, client, {}, name)
        self.executor = _StillExecutor(settings, scope, self._clock, lambda: True)
        self.running = self.executor.running
        self.settler = Settler(
            *(QueueKeys(settings.queue), name, self.running, lambda: None),
            db=settings.redis.db,
            keep_dead=settings.keep_dead,
        )
        self.executor.attach(self.settler, self.settler.queue.complete)
        self.settler.attach(line)  # type: ignore[arg-type]

    def take(self, entries: list[Entry]) -> None:
        """Holds them; one that has expired is settled instead."""
        self._clock.told(time.time() * 1000)
        by_id = {entry[0]: entry for entry in entries}
        for run in self._started(entries):
            self.held[run.entry] = by_id[run.entry]
            self.running.remove(run)

    def run(self, entry: Entry) -> Run:
        """The run of an entry, which was in time when it was read, whatever it is now."""
        self._clock.told(_LONG_AGO_MS)
        (run,) = self._started([entry])
        return run

    def end(self, entry: Entry, end: Exception | str) -> None:
        """Ends a run: with this value, or this error. Sent with `settler.flush`."""
        del self.held[entry[0]]
        run = self.run(entry)
        if isinstance(end, str):
            assert self.settler.queue.complete(run, end.encode())
        else:
            self.executor._raised(run, end)

    def _started(self, entries: list[Entry]) -> list[Run]:
        self.running.start(entries)
        while self.running.start_waiting():
            pass
        return list(self.running)
