"""`Client`: a producer's connection to one server."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from types import UnionType
from typing import Any, NoReturn, Self, TypeVar, overload

from fastq._core import ConnectionLost, NotSent, ReplyError
from fastq.clock import mono_s
from fastq.connection import (
    Backoff,
    CannotConnect,
    Connection,
    Link,
    code_of,
    is_passing,
    text_of,
    wants_reconnect,
)
from fastq.durations import UNSET, Duration, Unset, duration_s, whole_number
from fastq.errors import (
    ConfigError,
    EnqueueError,
    EnqueueUncertain,
    ServerUnavailable,
    sentence,
)
from fastq.jobs import Job, Returns
from fastq.keys import QUEUES, QueueKeys
from fastq.options import EnqueueOptions, enqueue_options
from fastq.producer import Producer, Recorded
from fastq.redis_settings import RedisSettings
from fastq.results import Results, status
from fastq.serializers import Serializer, resolve
from fastq.settings import MAX_PAYLOAD, MOST_PAYLOAD, Settings

T = TypeVar("T")

_ADVICE = {
    "OOM": "The server is full (maxmemory): free memory or raise the limit, then try again.",
    "WRONGTYPE": "The queue's key is no stream: remove what uses its name, or name another queue.",
    "KEY": "A key of the queue is of another type: remove what uses its name, or name another "
    "queue.",
    "NOPERM": "Let the user's ACL allow the command and the keys *fastq:*.",
    "MISCONF": "The server cannot save to disk: mend that, then try again.",
    "READONLY": "It is a replica: use the URL of its master.",
    "LOADING": "It still loads its data: try again in a moment.",
}


_REFUSED = "The job was not enqueued."


class Client(Producer):
    """Enqueues jobs and waits for their results.

    `redis` is a URL or `RedisSettings`, else `$FASTQ_REDIS_URL`, else localhost. Connects at first
    use; use it as `async with`, or `await close()` it. It belongs to the event loop and the process
    that first use it and says so (`RuntimeError`) elsewhere. All methods may be called by many
    coroutines at once: what they send in one loop turn is one write.
    """

    def __init__(
        self,
        redis: str | RedisSettings | None = None,
        *,
        queue: str = "default",
        serializer: str | Serializer = "json",
        max_payload: int = MAX_PAYLOAD,
        connect_timeout: float | timedelta = 5,
    ) -> None:
        self._settings = RedisSettings.resolve(redis)
        self._codec = resolve(serializer)
        self._max_payload = whole_number("max_payload", max_payload, most=MOST_PAYLOAD)
        self._timeout_s = duration_s("connect_timeout", connect_timeout)
        self._link = Link(self._settings, connect_timeout_s=self._timeout_s, name="fastq:client")
        self._results = Results(self._settings, self._timeout_s)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0
        self._closed = False
        self._announced: set[str] = set()
        super().__init__(self, QueueKeys(queue), EnqueueOptions())

    @classmethod
    def from_settings(cls, settings: Any, *, connect_timeout: float | timedelta = 5) -> Self:
        """A client for the server, queue and serializer of a worker's settings."""
        read = settings if isinstance(settings, Settings) else Settings.read(settings)
        return cls(
            read.redis,
            queue=read.queue,
            serializer=read.serializer,
            max_payload=read.max_payload,
            connect_timeout=connect_timeout,
        )

    def __repr__(self) -> str:
        return f"<Client of {self._settings.address}, queue {self.queue!r}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections. Waits for results that are under way end with an error."""
        if self._closed:
            return
        # Not by a forked child, whose parent still uses the same sockets.
        self._check_home()
        self._closed = True
        await self._results.close(
            RuntimeError(
                f"{self!r} was closed while a result was waited for. The job goes on; "
                "wait for it with another Client."
            )
        )
        await self._link.close()

    def options(
        self,
        *,
        job_id: str | None = None,
        defer_by: Duration | None = None,
        defer_until: datetime | None = None,
        queue: str | None = None,
        expires: Duration | None = None,
        timeout: Duration | Unset | None = UNSET,
        max_tries: int | None = None,
        keep_result: Duration | Unset | None = UNSET,
    ) -> Producer:
        """A producer whose jobs have these options. Durations are seconds or timedelta.

        `job_id`: the job's own id; while such a job waits or runs there is no second one.
        `defer_by`: how long it waits before it may run; `defer_until`: an aware datetime instead.
        `queue`: where it goes. `expires`: how long after it was enqueued it may still be started;
        past that its end is `expired`. `timeout`: how long a run may take, None for no limit.
        `max_tries`: how many runs it has at most. `keep_result`: how long, 0 for not at all, None
        for ever. What is not given is the function's or the worker's. `ConfigError` for what
        cannot be, `ValueError` for a naive datetime.
        """
        options = enqueue_options(
            job_id=job_id,
            defer_by=defer_by,
            defer_until=defer_until,
            expires=expires,
            timeout=timeout,
            max_tries=max_tries,
            keep_result=keep_result,
        )
        return Producer(self, self._keys if queue is None else QueueKeys(queue), options)

    @overload
    def job(self, job_id: str, *, queue: str | None = None) -> Job[Any]: ...
    @overload
    def job(self, job_id: str, *, queue: str | None = None, returns: type[T]) -> Job[T]: ...
    @overload
    def job(self, job_id: str, *, queue: str | None = None, returns: UnionType) -> Job[Any]: ...
    def job(self, job_id: str, *, queue: str | None = None, returns: Any = None) -> Job[Any]:
        """A handle of a job that was enqueued elsewhere. Does not ask whether there is one.

        `returns` is the type that its result is converted to.
        """
        if not isinstance(job_id, str) or not job_id:
            raise ConfigError(f"A job id is a non-empty string, not {job_id!r}.")
        keys = self._keys if queue is None else QueueKeys(queue)
        return Job(self, keys, job_id, None if returns is None else Returns(returns))

    # For the other classes of the producer's side

    async def _submit(self, keys: QueueKeys, packed: bytes) -> bytes:
        """Sends an XADD; the id that it was given. Never sent again if it may have arrived."""
        give_up_s = mono_s() + self._timeout_s
        backoff = Backoff(maximum_s=0.5)
        while True:
            connection = await self._ready(keys)
            try:
                job_id: bytes = await connection.request(packed)
                return job_id
            except NotSent:
                pass
            except ConnectionLost as error:
                raise _uncertain(error) from error
            except ReplyError as error:
                delay_s = backoff.next_s()
                if not is_passing(error) or mono_s() + delay_s > give_up_s:
                    raise self._refused(error) from error
                # It was refused, so it is safe to send again: to the new master after a failover.
                if wants_reconnect(error):
                    connection.fail(ConnectionLost(str(error)))
                await asyncio.sleep(delay_s)

    async def _submit_recorded(self, keys: QueueKeys, job: Recorded, *, lost: bool = False) -> int:
        """Enqueues a job that has a record; 1 if it was there. Sent until there is an answer.

        `lost`: it was sent before, and the reply was lost.
        """
        give_up_s = mono_s() + self._timeout_s
        backoff = Backoff(maximum_s=0.5)
        whole = False
        while True:
            try:
                connection = await self._ready(keys)
                existing: int = await connection.request(job.pack(whole=whole))
                return existing
            except EnqueueError as error:
                if lost:
                    raise _uncertain(error) from error
                raise
            except ConnectionLost as error:
                lost = lost or not isinstance(error, NotSent)
                delay_s = backoff.next_s()
                if mono_s() + delay_s > give_up_s:
                    raise _uncertain(error) from error
            except ReplyError as error:
                whole = code_of(error) == "NOSCRIPT"
                delay_s = 0.0 if whole else backoff.next_s()
                if not (whole or is_passing(error)) or mono_s() + delay_s > give_up_s:
                    why = self._refused(error, recorded=True)
                    raise (_uncertain(why) if lost else why) from error
                if wants_reconnect(error):
                    connection.fail(ConnectionLost(str(error)))
            await asyncio.sleep(delay_s)

    async def _ready(self, keys: QueueKeys) -> Connection:
        self._check_home()
        try:
            connection = self._link.connection or await self._link.ready()
        except CannotConnect as error:
            self._check_home()  # it may have been closed meanwhile
            raise EnqueueError(
                f"Redis cannot be reached, nothing was enqueued: {sentence(error)} "
                "Start it, or correct the URL."
            ) from error
        if keys.name not in self._announced:
            self._announced.add(keys.name)
            # Nobody waits for it: the list of queues is for people to look at.
            connection.call("SADD", QUEUES, keys.name).add_done_callback(_ignore)
        return connection

    async def _outcome(self, keys: QueueKeys, job_id: str) -> bytes:
        """The stored outcome of a job, once it is there."""
        self._check_home()
        return await self._results.wait(keys, job_id)

    async def _status(self, keys: QueueKeys, job_id: str) -> str:
        self._check_home()
        try:
            return await status(await self._link.ready(), keys, job_id)
        except (CannotConnect, ConnectionLost, ReplyError) as error:
            self._check_home()
            raise ServerUnavailable(
                f"The status of job {job_id} in queue {keys.name!r} cannot be told: "
                f"{sentence(error)} Ask again once Redis is there."
            ) from error

    def _refused(self, error: ReplyError, *, recorded: bool = False) -> EnqueueError:
        code = code_of(error)
        advice = _ADVICE.get("KEY" if recorded and code == "WRONGTYPE" else code, _REFUSED)
        return EnqueueError(
            f"{self._settings.address} refused the job: {sentence(text_of(error))} {advice}"
        )

    def _check_home(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._pid == os.getpid() and not self._closed:
            return
        if self._closed:
            raise RuntimeError(f"{self!r} was closed. Make a new Client.")
        if self._loop is not None:
            self._misused(loop)
        self._loop, self._pid = loop, os.getpid()

    def _misused(self, loop: asyncio.AbstractEventLoop) -> NoReturn:
        forked = self._pid != os.getpid()
        what = "process (it was used before a fork)" if forked else "event loop"
        raise RuntimeError(f"{self!r} belongs to another {what}. Make a Client in each.")


def _uncertain(error: Exception) -> EnqueueUncertain:
    return EnqueueUncertain(
        f"The reply was lost: {sentence(error)} The job may have been enqueued; "
        "enqueueing it again may run it twice."
    )


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
