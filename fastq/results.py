"""Waiting for results: the server tells when a result key is set, nobody polls for it.

A connection of its own has CLIENT TRACKING turned on: a GET makes the server remember the key, and
push an invalidation when it is written. Nothing is left behind for jobs that nobody waits for.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, get_args

from fastq._core import ConnectionLost, ReplyError, pack
from fastq.clock import mono_s
from fastq.connection import CannotConnect, Connection, Link, is_passing
from fastq.errors import FastqError, ResultNotFound, ServerUnavailable, sentence
from fastq.keys import GROUP, RELEASED, QueueKeys
from fastq.outcome import Status
from fastq.redis_settings import RedisSettings
from fastq.scripts import STATUS

log = logging.getLogger("fastq.results")

# A settled job that is being requeued has this in place of its outcome.
_FENCE = b"~"
_FIRST_LOOK_S = 1.0
_LOOK_EVERY_S = 5.0
_LOOKS_A_ROUND = 200


class _Wait:
    """All waiters of one result."""

    __slots__ = ("futures", "job_id", "keys", "look_s")

    def __init__(self, keys: QueueKeys, job_id: str) -> None:
        self.keys = keys
        self.job_id = job_id
        self.futures: set[asyncio.Future[bytes]] = set()
        self.look_s = mono_s() + _FIRST_LOOK_S

    def resolve(self, outcome: bytes | Exception) -> None:
        for future in self.futures:
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class Results:
    """The waiters of one client.

    1. GETs a result key, and again whenever the server says that it was written.
    2. After a reconnect GETs all keys again, since pushes may have been missed.
    3. Now and then asks where a job is: one that is nowhere has no result to wait for.
    """

    def __init__(self, settings: RedisSettings, connect_timeout_s: float) -> None:
        self._waits: dict[bytes, _Wait] = {}
        self._link = Link(
            settings,
            connect_timeout_s=connect_timeout_s,
            name="fastq:results",
            resp3=True,
            push=self._pushed,
            on_open=self._opened,
        )
        self._keeper: asyncio.Task[None] | None = None
        self._trouble = ""

    async def wait(self, keys: QueueKeys, job_id: str) -> bytes:
        """The stored outcome, as soon as it is there. `ResultNotFound` if the job is nowhere."""
        key = keys.result(job_id)
        wait = self._waits.get(key)
        if wait is None:
            wait = self._waits[key] = _Wait(keys, job_id)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        wait.futures.add(future)
        try:
            self._start(key)
            return await future
        finally:
            wait.futures.discard(future)
            if not wait.futures and self._waits.get(key) is wait:
                del self._waits[key]

    @property
    def trouble(self) -> str:
        """Why nothing is heard from the server at the moment, or ""."""
        if self._link.connection is not None:
            return ""
        return self._trouble or "no answer yet"

    async def close(self, error: Exception) -> None:
        """Ends all waits with this error."""
        if self._keeper is not None:
            self._keeper.cancel()
        self._resolve_all(error)
        await self._link.close()

    def _resolve_all(self, error: Exception) -> None:
        for wait in list(self._waits.values()):
            wait.resolve(error)

    def _start(self, key: bytes) -> None:
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.ensure_future(self._keep())
        connection = self._link.connection
        if connection is not None:
            self._look(connection, key)

    def _look(self, connection: Connection, key: bytes) -> None:
        connection.call_back(pack(b"GET", key), partial(self._got, key))

    def _got(self, key: bytes, reply: Any) -> None:
        wait = self._waits.get(key)
        if wait is not None and isinstance(reply, bytes) and reply != _FENCE:
            wait.resolve(reply)
        elif wait is not None and isinstance(reply, ReplyError) and not is_passing(reply):
            # A wrong type or an ACL: no waiting will mend it.
            wait.resolve(
                ServerUnavailable(
                    f"The result at {key.decode()} cannot be read: {sentence(reply)} "
                    "Mend that, then ask again."
                )
            )

    async def _opened(self, connection: Connection) -> None:
        try:
            await connection.call("CLIENT", "TRACKING", "ON")
        except ReplyError as error:
            # Results still come, by the looks every few seconds.
            log.warning("CLIENT TRACKING is refused, so results come late: %s", error)
        self._trouble = ""
        for key in self._waits:
            self._look(connection, key)

    def _pushed(self, push: list[Any]) -> None:
        connection = self._link.connection
        if connection is None or push[0] != b"invalidate":
            return
        # None stands for all keys (FLUSHALL, or the server's table is full).
        for key in list(self._waits) if push[1] is None else push[1]:
            if key in self._waits:
                self._look(connection, key)

    async def _keep(self) -> None:
        """Lives while anybody waits: opens the connection (again), and looks after old waits."""
        while self._waits:
            try:
                connection = await self._link.ready()
                await self._ask(connection)
            except (CannotConnect, ConnectionLost, ReplyError) as error:
                if str(error) != self._trouble:
                    log.warning("Results are not to be had at the moment: %s", error)
                self._trouble = str(error)
                await asyncio.sleep(0.2)
                continue
            except FastqError as error:  # TLS files that cannot be read
                self._resolve_all(error)
                return
            await asyncio.wait((connection.closed,), timeout=_FIRST_LOOK_S / 2)

    async def _ask(self, connection: Connection) -> None:
        now_s = mono_s()
        due = [w for w in self._waits.values() if w.look_s <= now_s][:_LOOKS_A_ROUND]
        for wait in due:
            wait.look_s = now_s + _LOOK_EVERY_S
        for wait in due:
            where = await status(connection, wait.keys, wait.job_id)
            if where == "not_found":
                wait.resolve(
                    ResultNotFound(
                        f"There is no result of job {wait.job_id} in queue {wait.keys.name!r}: "
                        "it never was there, keeps no result (keep_result=0), or its result has "
                        "expired."
                    )
                )
            elif where in get_args(Status):
                self._look(connection, wait.keys.result(wait.job_id))


async def status(connection: Connection, keys: QueueKeys, job_id: str) -> str:
    """Where a job is, in one atomic look."""
    found = await STATUS.call(
        connection,
        (keys.stream, keys.result(job_id), keys.record(job_id), keys.deferred),
        (GROUP, job_id, RELEASED),
    )
    return bytes(found).decode()
