"""`Worker`: wires the parts together and takes them through start, running and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastq._core import ConnectionLost, ReplyError
from fastq.beats import Beat, Heart, consumer_name, who
from fastq.burst import Burst
from fastq.client import Client
from fastq.clock import RedisClock
from fastq.complaints import Complaints
from fastq.connection import Backoff, CannotConnect, Connection, is_passing
from fastq.context import JobScope
from fastq.duties import leader_of, promoter_of
from fastq.errors import RedisAway
from fastq.executor import Executor
from fastq.fetcher import Fetcher, ensure_group
from fastq.keys import QueueKeys
from fastq.leader import Leader
from fastq.promoter import Promoter
from fastq.scripts import Part
from fastq.session import Session, kill_old_reader, leave, own_pending
from fastq.settings import Settings
from fastq.settler import Settler
from fastq.surplus import Surplus

log = logging.getLogger("fastq.worker")

# After the jobs' own time: what the last steps may take while Redis answers, or does not.
_LAST_STEPS_S = 3.0
_CLEAN_UP_S = 2.0
_ASK_AGAIN_S = 0.05
_WHAT_TO_DO = "Start it, or correct the URL."


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
        self._who = who()
        self._session: Session | None = None
        self._last_reader = 0
        self._started_ms = 0
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0
        self._stop_asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._done = asyncio.Event()
        self._closing = False
        self._parting = False
        self._left = False
        self._serving = False
        self._quiet = False
        self._beating: asyncio.Task[None] | None = None
        self._hushing: asyncio.Task[None] | None = None
        self._timeout_s = self.settings.shutdown_timeout_s
        self._surplus = Surplus(self._keys, self.consumer)
        self._fetcher: Fetcher
        self._executor: Executor
        self._settler: Settler
        self._heart: Heart
        self._leader: Leader

    async def run(self) -> None:
        """Runs jobs until `stop`, or in a burst until the queue is empty.

        Cancelling it is a graceful stop, after which `CancelledError` is raised. Raises what
        `lifespan` raises; Redis being away is no error, it is waited for (but `RedisAway` at the
        start of a burst).
        """
        if self._task is not None:
            raise RuntimeError("A Worker runs once. Make a new one.")
        self._task = task = asyncio.current_task()
        # Who swallows a cancellation seldom takes it back: only those that come now count.
        self._cancels = task.cancelling() if task is not None else 0
        try:
            async with self._state() as state, Client.from_settings(self.settings) as client:
                self._build(JobScope(self.settings.queue, client, state, self.consumer))
                self._serving = True
                if self._quiet:
                    self._fetcher.stop()
                await self._serve_until_stopped()
        finally:
            self._done.set()

    @property
    def serving(self) -> bool:
        """True once `lifespan` has been entered and jobs may run."""
        return self._serving

    def quiet(self) -> None:
        """Starts no more jobs; what runs goes on, and the worker stays."""
        self._quiet = True
        if self._serving:
            self._fetcher.stop()
            self._hushing = self._hushing or asyncio.ensure_future(self._hush())

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

    def _build(self, scope: JobScope) -> None:
        self._executor = Executor(self.settings, scope, self._clock, self._is_going)
        self._settler = Settler(
            *(self._keys, self.consumer, self._executor.running),
            lambda: self._fetcher.wake(),
            db=self.settings.redis.db,
            keep_dead=self.settings.keep_dead,
        )
        promoter = promoter_of(self.settings, self._keys)
        self._leader = leader_of(self.settings, self._keys, promoter, self._clock)
        self._executor.attach(self._settler, self._settler.queue.complete)
        self._fetcher = Fetcher(
            *(self._keys, self.consumer, self._executor.running),
            watch=self._executor.watch,
            unanswered=lambda: self._settler.unanswered,
            surplus=self._surplus.add,
            idle=self._burst(promoter).idle if self.settings.burst else None,
        )
        self._heart = Heart(
            self._keys, self.consumer, self._clock, facts=self._facts, told=self._told
        )

    def _burst(self, promoter: Promoter) -> Burst:
        return Burst(
            *(self._keys, promoter, self._executor.endings.retried),
            writer=lambda: None if self._session is None else self._session.writer,
            delivered=lambda: self._fetcher.delivered,
            read=lambda: self._fetcher.wake(),
            stop=self._stop_asked.set,
        )

    def _is_going(self) -> bool:
        """False once the worker is being taken down: then a job that is cancelled did not fail."""
        cancelled = self._task is not None and self._task.cancelling() > self._cancels
        return not (self._closing or cancelled)

    def _facts(self) -> dict[str, Part]:
        running, reading = len(self._executor.running), int(self._fetcher.healthy)
        return {**self._who, "running": running, "started": self._started_ms, "reading": reading}

    def _told(self, beat: Beat) -> None:
        self._settler.queue.offset_ms = self._clock.offset_ms
        self._started_ms = self._started_ms or self._clock.now_ms()
        session = self._session
        if not beat.leads:
            self._leader.step_down()
        # The first beat of a session comes before it is this worker's own.
        elif session is not None and not session.ended.done():
            self._leader.lead(session.writer)

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
        cancelled |= await self._finish_surely(serving)
        if not serving.cancelled() and serving.exception() is not None:
            await serving
        if cancelled:
            raise asyncio.CancelledError

    async def _serve(self) -> None:
        """One session after the other."""
        backoff, complaints = Backoff(), Complaints(log)
        joined = False
        while True:
            try:
                session = await self._join()
            except (CannotConnect, ConnectionLost, ReplyError) as error:
                if self.settings.burst and not joined:
                    raise RedisAway(f"Redis is away: {error}. {_WHAT_TO_DO}") from error
                complaints.say(f"Redis is not to be had, trying again: {error}")
                await asyncio.sleep(backoff.next_s())
                continue
            if not joined:
                log.info("%s serves queue %r", self.consumer, self._keys.name)
            elif complaints.eased():
                log.info("Redis is back")
            joined = True
            replies = session.reader.wire.replies
            cause = await self._live(session)
            if useful := session.reader.wire.replies > replies:
                backoff.reset()
                complaints.over()
            complaints.say(f"The connection to Redis broke: {cause}")
            # One in which no read was answered was a failed try: the next may be no better.
            if not useful:
                await asyncio.sleep(backoff.next_s())

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
                await self._surplus.hand_back(session.writer)
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
            log.info("%d jobs were delivered in a reply that got lost", len(entries))
            self._fetcher.deliver(entries)

    async def _live(self, session: Session) -> Exception:
        self._fetcher.attach(session.reader)
        if not self._parting:
            self._beating = asyncio.ensure_future(self._heart.run(session.writer))
        try:
            return await self._end_of(session)
        finally:
            self._resign()
            self._fetcher.detach()
            self._settler.detach()

    def _resign(self) -> None:
        """Beats no more, and leads no more."""
        if self._beating is not None:
            self._beating.cancel()
        self._leader.step_down()

    async def _end_of(self, session: Session) -> Exception:
        while True:
            try:
                return await asyncio.shield(session.ended)
            except asyncio.CancelledError:
                # A loop that is torn down cancels all tasks at once, but the last steps of the
                # stop still need this session.
                if self._left:
                    raise

    async def _hush(self) -> None:
        """Ends the read that is under way, and hands back what it still brought."""
        await self._end_reading()
        if self._session is not None:
            # If it is gone, the next one sees to it.
            with contextlib.suppress(ConnectionLost, ReplyError):
                await self._surplus.hand_back(self._session.writer)

    # Stop

    async def _finish_surely(self, serving: asyncio.Task[None]) -> bool:
        """`_finish`, and whoever cancels it makes it hurry; True if that was so."""
        hurried = False
        finishing = asyncio.ensure_future(self._finish(serving))
        while not finishing.done():
            try:
                await asyncio.wait((finishing,))
            except asyncio.CancelledError:
                log.warning("%s was cancelled once more: jobs are not waited for", self.consumer)
                hurried = True
                self._hurry.set()
            if finishing.cancelled():  # the loop is torn down
                finishing = asyncio.ensure_future(self._finish(serving))
        finishing.result()
        return hurried

    async def _finish(self, serving: asyncio.Task[None]) -> None:
        """The steps of a stop, in an order in which no job can get lost between them."""
        log.info("%s stops", self.consumer)
        self._fetcher.stop()
        if self._hushing is not None:
            self._hushing.cancel()
        reading = asyncio.ensure_future(self._end_reading())
        await self._wait_for_jobs()
        self._closing = True
        await self._executor.cancel(_CLEAN_UP_S)
        await self._leave(reading)
        self._left = True
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await serving
        if self._session is not None:
            self._session.close()
        self.failed = self._executor.endings.failed
        self.threads_left = self._executor.close()

    async def _end_reading(self) -> None:
        if self._session is not None:
            await self._session.end_reading(lambda: self._fetcher.reading)

    async def _wait_for_jobs(self) -> None:
        if not len(self._executor.running) or self._hurry.is_set():
            return
        jobs = asyncio.ensure_future(self._executor.ended())
        hurry = asyncio.ensure_future(self._hurry.wait())
        try:
            await asyncio.wait(
                (jobs, hurry), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            jobs.cancel()
            hurry.cancel()

    async def _leave(self, reading: asyncio.Task[None]) -> None:
        """Says the last things, if Redis is there to be told; else the lease will cover them."""
        self._surplus.add(self._executor.unfinished())
        self._settler.flush()
        try:
            async with asyncio.timeout(_LAST_STEPS_S):
                await reading
                await self._settler.drained()
                await self._part()
        except TimeoutError:
            log.warning(
                "Redis did not answer at the end: %d settles and %d unfinished jobs are left to "
                "other workers",
                self._settler.unanswered,
                len(self._surplus),
            )
        except (ConnectionLost, ReplyError) as error:
            if self._surplus:
                log.warning("%d jobs were not handed back: %s", len(self._surplus), error)

    async def _part(self) -> None:
        while self._session is not None:
            try:
                writer = self._session.writer
                await self._surplus.hand_back(writer)
                # A beat after the last word would bring this consumer back to life.
                self._parting = True
                self._resign()
                await leave(writer, self._keys, self.consumer)
                return
            except (ConnectionLost, ReplyError) as error:
                # A server that restarts may be back in time for the jobs; without any, it is
                # not worth a wait.
                if not self._surplus or not (
                    isinstance(error, ConnectionLost) or is_passing(error)
                ):
                    raise
                await asyncio.sleep(_ASK_AGAIN_S)
