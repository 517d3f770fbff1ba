"""`Client`: a producer's connection to one server."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
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
    wants_reconnect,
)
from fastq.errors import (
    ConfigError,
    EnqueueError,
    EnqueueUncertain,
    ServerUnavailable,
    sentence,
)
from fastq.functions import UNSET, Duration, Unset, duration_s, keep_s, limit_s
from fastq.jobs import Job, Returns
from fastq.keys import QUEUES, QueueKeys
from fastq.producer import EntryOptions, Producer
from fastq.redis_settings import RedisSettings
from fastq.results import Results, status
from fastq.serializers import Serializer, resolve
from fastq.settings import MAX_PAYLOAD, MOST_PAYLOAD, Settings, whole_number

T = TypeVar("T")

_ADVICE = {
    "OOM": "The server is full (maxmemory): free memory or raise the limit, then try again.",
    "WRONGTYPE": "The queue's key is no stream: remove what uses its name, or name another queue.",
    "NOPERM": "Let the user's ACL allow the command and the keys *fastq:*.",
    "MISCONF": "The server cannot save to disk: mend that, then try again.",
    "READONLY": "It is a replica: use the URL of its master.",
    "LOADING": "It still loads its data: try again in a moment.",
}


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
        super().__init__(self, QueueKeys(queue), EntryOptions())

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
        queue: str | None = None,
        timeout: Duration | Unset | None = UNSET,
        keep_result: Duration | Unset | None = UNSET,
    ) -> Producer:
        """A producer whose jobs have these options.

        `queue`: where they go. `timeout`: seconds a run may take, None for no limit. `keep_result`:
        seconds, 0 for not at all, None for ever. What is not given is the function's or the
        worker's.
        """
        limit = None if isinstance(timeout, Unset) else limit_s("timeout", timeout)
        options = EntryOptions(
            timeout_s=limit,
            no_timeout=limit is None and not isinstance(timeout, Unset),
            keep_ms=None if isinstance(keep_result, Unset) else _keep_ms(keep_result),
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
                raise EnqueueUncertain(
                    f"The reply was lost: {sentence(error)} The job may have been enqueued; "
                    "enqueueing it again may run it twice."
                ) from error
            except ReplyError as error:
                delay_s = backoff.next_s()
                if not is_passing(error) or mono_s() + delay_s > give_up_s:
                    raise self._refused(error) from error
                # It was refused, so it is safe to send again: to the new master after a failover.
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

    def _refused(self, error: ReplyError) -> EnqueueError:
        advice = _ADVICE.get(code_of(error), "The job was not enqueued.")
        return EnqueueError(f"{self._settings.address} refused the job: {sentence(error)} {advice}")

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


def _keep_ms(value: Duration | None) -> int:
    """As the entry's field `k` has it: 0 for not at all, -1 for ever."""
    kept_s = keep_s("keep_result", value)
    return -1 if kept_s is None else max(1, int(kept_s * 1000)) if kept_s else 0


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
