"""`Worker`: wires the parts together and takes them through start, running and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import AsyncIterator
from typing import Any

from fastq import __version__
from fastq._core import ConnectionLost, ReplyError
from fastq.beats import Heart, consumer_name
from fastq.client import Client
from fastq.clock import RedisClock, mono_s
from fastq.connection import Backoff, CannotConnect, Connection
from fastq.context import JobScope
from fastq.errors import FastqError
from fastq.executor import Executor
from fastq.fetcher import Fetcher, ensure_group
from fastq.keys import GROUP, RELEASED, QueueKeys
from fastq.scripts import HAND_BACK, LEAVE, Part
from fastq.session import Session, kill_old_reader, own_pending
from fastq.settings import Settings
from fastq.settler import Settler

log = logging.getLogger("fastq.worker")

# After the jobs' own time: what the last steps may take while Redis answers, or does not.
_LAST_STEPS_S = 3.0
_CLEAN_UP_S = 2.0
_HAND_BACK_JOBS = 250
_WHAT_TO_DO = "Start it, or correct the URL."


class RedisAway(FastqError):
    """A burst could not start: Redis is away."""


class Worker:
    """Runs the jobs of one queue until it is stopped.

    1. Holds a session with the server, and makes a new one whenever it breaks.
    2. After a break: kills the old reader, sends what is kept, finds entries whose reply was lost.
    3. Stops: starts nothing more, waits for what runs, hands back what does not end.

    `settings` is a settings class, instance or module. Installs no signal handlers and sets up no
    logging. A worker runs once.
    """

    def __init__(self, settings: Any) -> None:
        self.settings = settings if isinstance(settings, Settings) else Settings.read(settings)
        self.consumer = consumer_name(secrets.token_hex(4))
        self.failed = 0
        self.threads_left = False
        self._keys = QueueKeys(self.settings.queue)
        self._clock = RedisClock()
        self._session: Session | None = None
        self._last_reader = 0
        self._started_ms = 0
        self._task: asyncio.Task[Any] | None = None
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._done = asyncio.Event()
        self._closing = False
        self._serving = False
        self._timeout_s = self.settings.shutdown_timeout_s
        self._surplus: list[bytes] = []
        self._fetcher: Fetcher
        self._executor: Executor
        self._settler: Settler
        self._heart: Heart

    async def run(self) -> None:
        """Runs jobs until `stop`, or in a burst until the queue is empty.

        Cancelling it is a graceful stop, after which `CancelledError` is raised. Raises what
        `lifespan` raises; Redis being away is no error, it is waited for (but `RedisAway` at the
        start of a burst).
        """
        if self._task is not None:
            raise RuntimeError("A Worker runs once. Make a new one.")
        self._task = asyncio.current_task()
        try:
            async with self._state() as state, self._client() as client:
                self._build(JobScope(self.settings.queue, client, state))
                self._serving = True
                await self._serve_until_stopped()
        finally:
            self._done.set()

    @property
    def serving(self) -> bool:
        """True once `lifespan` has been entered and jobs may run."""
        return self._serving

    def quiet(self) -> None:
        """Starts no more jobs; what runs goes on, and the worker stays."""
        if self._serving:
            self._fetcher.stop()

    async def stop(self, timeout: float | None = None) -> None:
        """Stops and returns once all has ended.

        Jobs that still run after `timeout` seconds (default `shutdown_timeout`) are cancelled and
        handed back: another worker runs them.
        """
        if timeout is not None:
            self._timeout_s = timeout
        self.ask_to_stop()
        await self._done.wait()

    def ask_to_stop(self) -> None:
        """Begins to stop; asked a second time, it waits for jobs no longer."""
        if self._stop_asked.is_set():
            self._hurry.set()
        self._stop_asked.set()

    # Start

    @contextlib.asynccontextmanager
    async def _state(self) -> AsyncIterator[Any]:
        lifespan = self.settings.lifespan
        if lifespan is None:
            yield {}
            return
        async with lifespan(self.settings.source) as state:
            yield {} if state is None else state

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        async with Client.from_settings(self.settings) as client:
            yield client

    def _build(self, scope: JobScope) -> None:
        burst = self.settings.burst
        self._executor = Executor(self.settings, scope, self._clock, self._is_going)
        self._settler = Settler(
            self._keys, self.consumer, self._executor.running, lambda: self._fetcher.wake()
        )
        self._executor.attach(_Settles(self._settler), self._settler.queue.complete)
        self._fetcher = Fetcher(
            self._keys,
            self.consumer,
            self._executor.running,
            unanswered=lambda: self._settler.unanswered,
            surplus=self._surplus.extend,
            idle=self._stop_asked.set if burst else None,
        )
        self._heart = Heart(
            self._keys, self.consumer, self._clock, facts=self._facts, told=self._set_clock
        )

    def _is_going(self) -> bool:
        """False once the worker is being taken down: then a job that is cancelled did not fail."""
        cancelled = self._task is not None and self._task.cancelling() > 0
        return not (self._closing or cancelled)

    def _facts(self) -> dict[str, Part]:
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "version": __version__,
            "running": len(self._executor.running),
            "started": self._started_ms,
            "reading": int(self._fetcher.healthy),
        }

    def _set_clock(self) -> None:
        self._settler.queue.offset_ms = self._clock.offset_ms
        self._started_ms = self._started_ms or self._clock.now_ms()

    # Running

    async def _serve_until_stopped(self) -> None:
        serving = asyncio.ensure_future(self._serve())
        stop = asyncio.ensure_future(self._stop_asked.wait())
        cancelled = False
        try:
            await asyncio.wait((serving, stop), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            cancelled = True
        stop.cancel()
        if serving.done() and serving.exception() is not None:
            await serving
        await self._finish(serving)
        if cancelled:
            raise asyncio.CancelledError

    async def _serve(self) -> None:
        """One session after the other."""
        backoff = Backoff()
        complaint = ""
        joined = False
        while True:
            try:
                session = await self._join()
            except (CannotConnect, ConnectionLost, ReplyError) as error:
                if self.settings.burst and not joined:
                    raise RedisAway(f"Redis is away: {error}. {_WHAT_TO_DO}") from error
                if str(error) != complaint:
                    complaint = str(error)
                    log.warning("Redis is not to be had, trying again: %s", error)
                await asyncio.sleep(backoff.next_s())
                continue
            if not joined:
                log.info("%s serves queue %r", self.consumer, self._keys.name)
            elif complaint:
                log.info("Redis is back")
            joined, complaint = True, ""
            backoff.reset()
            complaint = str(await self._live(session))
            log.warning("The connection to Redis broke: %s", complaint)

    async def _join(self) -> Session:
        """Opens a session and puts in order what the last one left."""
        session = await Session.open(self.settings.redis, self.consumer)
        try:
            await ensure_group(session.writer, self._keys)
            # A server that was restarted may have given the new reader the old one's number.
            if self._last_reader not in (0, session.reader.client_id):
                await kill_old_reader(session.writer, self.consumer, self._last_reader)
            await self._heart.beat(session.writer)
            self._settler.attach(session.writer)
            if self._last_reader:
                await self._find_lost(session.writer)
        except BaseException as error:
            self._settler.detach()
            session.fail(ConnectionLost(str(error)))
            raise
        self._last_reader = session.reader.client_id
        self._session = session
        return session

    async def _find_lost(self, writer: Connection) -> None:
        # Jobs that ended in this very turn are in no list yet: they would be taken for lost.
        self._settler.flush()
        held = self._executor.running.ids() + self._settler.ids()
        entries = await own_pending(writer, self._keys, self.consumer, held)
        if entries:
            log.info(
                "%d jobs were delivered in a reply that got lost; they start now", len(entries)
            )
            self._fetcher.start(entries)

    async def _live(self, session: Session) -> Exception:
        self._fetcher.attach(session.reader)
        beating = asyncio.ensure_future(self._heart.run(session.writer))
        try:
            return await asyncio.shield(session.ended)
        finally:
            beating.cancel()
            self._fetcher.detach()
            self._settler.detach()

    # Stop

    async def _finish(self, serving: asyncio.Task[None]) -> None:
        """The steps of a stop, in an order in which no job can get lost between them."""
        log.info("%s stops", self.consumer)
        self._fetcher.stop()
        await self._end_reading()
        await self._wait_for_jobs()
        self._closing = True
        self._executor.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLEAN_UP_S):
                await self._executor.ended()
        give_up_s = mono_s() + _LAST_STEPS_S
        self._settler.flush()
        await self._leave(give_up_s)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await serving
        if self._session is not None:
            self._session.close()
        self.failed = self._executor.failed
        self.threads_left = self._executor.close()

    async def _end_reading(self) -> None:
        """Unblocks the reader. Repeated: before the server has seen the read, it answers 0."""
        give_up_s = mono_s() + _LAST_STEPS_S
        while self._fetcher.reading and mono_s() < give_up_s:
            session = self._session
            if session is None or session.ended.done():
                return
            with contextlib.suppress(ConnectionLost, ReplyError, TimeoutError):
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + 0.5):
                    await session.writer.call("CLIENT", "UNBLOCK", session.reader.client_id)
            await asyncio.sleep(0.002)

    async def _wait_for_jobs(self) -> None:
        if not len(self._executor.running) or self._hurry.is_set():
            return
        jobs = asyncio.ensure_future(self._executor.ended())
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                (jobs, hurry), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            log.warning("Cancelled a second time: jobs are not waited for")
        jobs.cancel()
        hurry.cancel()

    async def _leave(self, give_up_s: float) -> None:
        """Says the last things, if Redis is there to be told; else the lease will cover them."""
        unfinished = [*self._surplus, *self._executor.unfinished()]
        try:
            async with asyncio.timeout(max(give_up_s - mono_s(), 0)):
                await self._settler.drained()
                await self._hand_back(unfinished)
        except TimeoutError:
            log.warning(
                "Redis did not answer at the end: %d settles and %d unfinished jobs are left to "
                "other workers",
                self._settler.unanswered,
                len(unfinished),
            )
        except (ConnectionLost, ReplyError) as error:
            if unfinished:
                log.warning("%d unfinished jobs were not handed back: %s", len(unfinished), error)

    async def _hand_back(self, unfinished: list[bytes]) -> None:
        if self._session is None:
            return
        writer, keys = self._session.writer, self._keys
        for first in range(0, len(unfinished), _HAND_BACK_JOBS):
            page = unfinished[first : first + _HAND_BACK_JOBS]
            await HAND_BACK.call(writer, (keys.stream,), (GROUP, self.consumer, RELEASED, *page))
        if unfinished:
            log.info("%d unfinished jobs were handed back", len(unfinished))
        hash_key = keys.consumer_prefix + self.consumer.encode()
        await LEAVE.call(writer, (keys.stream, keys.beats, hash_key), (GROUP, self.consumer))


class _Settles:
    """The settler as the executor sees it."""

    def __init__(self, settler: Settler) -> None:
        self.bury = settler.bury
        self.touch = settler.queue.touch
        self.complete = settler.queue.complete
