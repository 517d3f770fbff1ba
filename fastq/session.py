"""A worker's connections to the server: they live and fail together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from fastq._core import ConnectionLost, ReplyError
from fastq.connection import REPLY_DEADLINE_S, Connection, code_of, connect
from fastq.keys import GROUP, QueueKeys
from fastq.redis_settings import RedisSettings
from fastq.scripts import LEAVE, OWN_PENDING, PAGE_BYTES, PAGE_JOBS

log = logging.getLogger("fastq.session")

_UNBLOCK_S = 0.5


class Session:
    """Reader and writer of one worker.

    All of a process's connections move together: after a failover, a reader on the new master and a
    writer on the old one would run jobs twice. `ended` is resolved with the cause.
    """

    def __init__(self, reader: Connection, writer: Connection) -> None:
        self.reader = reader
        self.writer = writer
        self.ended: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        for connection in (reader, writer):
            connection.closed.add_done_callback(self._one_ended)
            if connection.closed.done():
                self._one_ended(connection.closed)

    @classmethod
    async def open(cls, settings: RedisSettings, consumer: str) -> Session:
        """Connects both; `CannotConnect` if one fails."""
        writer = await _connect(settings, f"{consumer}:writer")
        try:
            reader = await _connect(settings, reader_name(consumer))
        except BaseException:
            writer.close()
            raise
        return cls(reader, writer)

    async def end_reading(self, reading: Callable[[], bool]) -> None:
        """Unblocks the reader. Repeated: before the server has seen the read, it answers 0."""
        while reading() and not self.ended.done():
            with contextlib.suppress(ConnectionLost, ReplyError, TimeoutError):
                async with asyncio.timeout(_UNBLOCK_S):
                    await self.writer.call("CLIENT", "UNBLOCK", self.reader.client_id)
            await asyncio.sleep(0.002)

    def fail(self, error: Exception) -> None:
        """Ends both connections."""
        if not self.ended.done():
            self.ended.set_result(error)
        self.reader.fail(error)
        self.writer.fail(error)

    def close(self) -> None:
        """Ends both because they are not needed any more; what is queued is still written."""
        if not self.ended.done():
            self.ended.set_result(ConnectionLost("closed"))
        self.writer.close()
        self.reader.close()

    def _one_ended(self, closed: asyncio.Future[Exception]) -> None:
        self.fail(closed.result())


def _connect(settings: RedisSettings, name: str) -> Coroutine[Any, Any, Connection]:
    return connect(settings, name=name, reply_deadline_s=REPLY_DEADLINE_S)


def reader_name(consumer: str) -> str:
    """What CLIENT LIST calls the reader of a consumer."""
    return f"{consumer}:reader"


async def kill_old_reader(writer: Connection, consumer: str, client_id: int) -> None:
    """Makes sure that the server does not go on delivering to a reader that is gone.

    A reader that was cut off without a FIN still blocks at the server and would swallow the next
    jobs. Ids of clients start anew when the server does, so only a client of this name is killed.
    """
    name = reader_name(consumer).encode()
    try:
        listed: bytes = await writer.call("CLIENT", "LIST", "ID", client_id)
        if b" name=" + name + b" " in listed:
            await writer.call("CLIENT", "KILL", "ID", client_id)
    except ReplyError as error:
        if code_of(error) == "NOPERM":
            log.warning("CLIENT LIST and KILL are refused (%s): jobs may wait for a lease", error)
        elif "No such client" not in str(error):
            raise


async def own_pending(
    writer: Connection, keys: QueueKeys, consumer: str, held: list[bytes]
) -> list[Any]:
    """Entries that were delivered to this consumer in a reply that got lost.

    `held` are the ids that it has. Not by XREADGROUP with an id: that charges a delivery each time.
    """
    found: list[Any] = []
    cursor: bytes = b"-"
    while cursor:
        cursor, entries = await OWN_PENDING.call(
            writer, (keys.stream,), (GROUP, consumer, cursor, PAGE_JOBS, PAGE_BYTES, *held)
        )
        found.extend(entries)
    return found


async def leave(writer: Connection, keys: QueueKeys, consumer: str) -> None:
    """Takes the consumer out of the books."""
    hash_key = keys.consumer_prefix + consumer.encode()
    books = (keys.stream, keys.beats, hash_key, keys.leader)
    await LEAVE.call(writer, books, (GROUP, consumer))
