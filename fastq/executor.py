"""One job's life: from the decoded entry to its end, whatever that is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from fastq._core import (
    DETACHED,
    OVERDUE,
    RUNNING,
    Function,
    Run,
    RunningSet,
    UnknownFunction,
)
from fastq.clock import RedisClock, mono_s
from fastq.context import Context, JobScope, Running, enter
from fastq.decoders import ArgumentsError, UndecodableError, arguments_decoder
from fastq.durations import Unset
from fastq.endings import Endings, Settles
from fastq.entries import (
    INFINITE,
    configure,
    expired,
    is_expired,
    keep_as_asked,
    keep_of,
    ms_of,
    too_long,
    unknown_function,
)
from fastq.errors import JobExpired
from fastq.functions import FunctionInfo
from fastq.outcome import Ending, Outcome
from fastq.settings import Settings
from fastq.threads import Ran, Threads

log = logging.getLogger("fastq.executor")

_SWEEP_S = 0.1
# A cancelled job may clean up for this long before it counts as one that ignores cancellation.
_GRACE_S = 1.0
_HOOK_LIMIT_S = 30.0
_NULL = b"null"
_REFUSALS = {JobExpired: Ending.EXPIRED, ArgumentsError: Ending.UNFIT_ARGUMENTS}
_EAGER = sys.version_info >= (3, 12)


class Executor:
    """Runs jobs.

    1. Makes the table of functions that the core starts jobs by.
    2. Runs async functions as tasks and sync ones in threads, with the hooks around them.
    3. Ends those that are over their time, ten times a second.
    4. Says how each run ended; `decide` says what follows.
    5. At the end of the worker cancels what still runs and tells which jobs are unfinished.
    """

    def __init__(
        self, settings: Settings, scope: JobScope, clock: RedisClock, going: Callable[[], bool]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._scope = scope
        self._clock = clock
        # False once the worker itself is being cancelled: a job cancelled then is no failure.
        self._going = going
        self._touch: Callable[[], None]
        self._complete: Callable[[Run, bytes], bool]
        self._dump = settings.codec.dump_value
        self._keep = keep_of(ms_of(settings.keep_result_s))
        self._threads = Threads(settings.max_jobs)
        self._sweeper: asyncio.TimerHandle | None = None
        self._observed = bool(
            settings.on_job_start or settings.on_job_end or log.isEnabledFor(logging.DEBUG)
        )
        self._unfinished: list[bytes] = []
        self.endings = Endings(settings, scope.queue, clock)
        self.late = 0
        functions = {n.encode(): self._function(i) for n, i in settings.functions.items()}
        self.running = RunningSet(
            settings.max_jobs,
            functions,
            spawn=self._spawner(),
            refuse=self._refuse,
            configure=lambda run: configure(run, clock.now_ms()),
        )

    def attach(self, settles: Settles, complete: Callable[[Run, bytes], bool]) -> None:
        """Where ends are told. `complete` is called for each success: it is the core's own."""
        self.endings.attach(settles)
        self._touch = settles.touch
        self._complete = complete

    # The table of functions

    def _function(self, info: FunctionInfo) -> Function:
        options, settings = info.options, self._settings
        timeout_s, kept_s = options.timeout_s, options.keep_result_s
        timeout_s = settings.job_timeout_s if isinstance(timeout_s, Unset) else timeout_s
        kept_s = settings.keep_result_s if isinstance(kept_s, Unset) else kept_s
        context = partial(Context, self._scope) if info.takes_context else None
        return Function(
            info.name,
            info.call,
            arguments_decoder(info.call, skip_first=info.takes_context, codec=settings.codec),
            timeout_s=INFINITE if timeout_s is None else timeout_s,
            keep=keep_of(ms_of(kept_s)),
            is_async=info.is_async,
            context=context,
            execute=self._life(info),
            enter=self._enter,
        )

    def _enter(self, run: Run) -> None:
        """Notes whose code runs now: a job that enqueues its own id means its next run."""
        scope = self._scope
        enter(Running(scope.queue, run.id.decode(), run.entry, scope.consumer))

    def _life(self, info: FunctionInfo) -> Callable[[Run], Coroutine[Any, Any, None]]:
        if self._observed:
            how = self._call_async if info.is_async else self._threads.call
            return partial(self._run_observed, how)
        return self._run_async if info.is_async else self._run_in_thread

    def _spawner(self) -> Callable[..., asyncio.Task[None]]:
        # Eager tasks save a loop turn a job; each still runs in a copy of the context of its own.
        if sys.version_info >= (3, 12):
            return partial(asyncio.Task, loop=self._loop, eager_start=True)
        return partial(asyncio.Task, loop=self._loop)

    # The lives of runs

    async def _run_async(self, run: Run) -> None:
        try:
            value = await run.call()
            data = _NULL if value is None else self._dump(value)
        except BaseException as error:
            self._raised(run, error)
            return
        if not self._complete(run, data):
            self._over(run)

    async def _run_in_thread(self, run: Run) -> None:
        try:
            error, value = await self._threads.call(run)
            data = b"" if error is not None else self._dump(value)
        except BaseException as raised:
            error = raised
        if error is not None:
            self._raised(run, error)
            return
        if not self._complete(run, data):
            self._over(run)

    async def _call_async(self, run: Run) -> Ran:
        try:
            return None, await run.call()
        except BaseException as error:
            return error, None

    async def _run_observed(self, how: Callable[[Run], Awaitable[Ran]], run: Run) -> None:
        """A run with hooks around it. It holds its slot, and its result, until they have ended."""
        error: BaseException | None = None
        value, data = None, b""
        log.debug("%s %s starts", run.function.name, run.id.decode())
        try:
            await self._hook(run, self._settings.on_job_start)
            error, value = await how(run)
            data = b"" if error is not None else self._dump(value)
        except BaseException as raised:
            error = raised
        # What it is told is what is stored: from here on the run's own time limit is over.
        run.deadline_s = INFINITE
        outcome = self._outcome(run, value, error)
        if outcome is not None:
            await self._hook(run, self._settings.on_job_end, outcome)
        log.debug("%s %s ended: %r", run.function.name, run.id.decode(), error or "complete")
        if error is not None:
            self._raised(run, error)
        elif not self._complete(run, data):
            self._over(run)

    async def _hook(self, run: Run, hook: Callable[..., Any] | None, *more: Any) -> None:
        if hook is None:
            return
        context = run.context or Context(self._scope, run)
        try:
            async with asyncio.timeout(_HOOK_LIMIT_S):
                await hook(context, *more)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if not (isinstance(error, asyncio.CancelledError) and _is_cancelled()):
                log.exception("%s raised; the job goes on", getattr(hook, "__name__", hook))
            # The job's own time limit or the worker's end; after the job's end it changes nothing.
            elif not more:
                raise

    # Ends

    def _refuse(self, run: Run, error: Exception) -> None:
        """A job that cannot even start."""
        if isinstance(error, UnknownFunction):
            # Whoever waits for it is told, for as long as this worker keeps results.
            run.keep = self._keep
            error = LookupError(unknown_function(run))
            ending = Ending.UNKNOWN_FUNCTION
            if self._is_expired(run):
                ending, error = Ending.EXPIRED, expired()
        elif run.payload is None:
            error = UndecodableError("the entry has no payload: its field d is missing")
            ending = Ending.UNDECODABLE
        else:
            ending = _REFUSALS.get(type(error), Ending.UNDECODABLE)
        # The error may have come before this was looked at, or may be about this.
        with contextlib.suppress(ValueError):
            keep_as_asked(run)
        self.endings.end(run, ending, error)
        self.running.remove(run)

    def _is_expired(self, run: Run) -> bool:
        try:
            return is_expired(run, self._clock.now_ms())
        except ValueError:
            return False

    def _raised(self, run: Run, error: BaseException) -> None:
        if run.state != RUNNING:
            self._over(run, error)
        elif self._was_stopped(run, error):
            self._unfinished.append(run.entry)
            self.running.remove(run)
            if isinstance(error, KeyboardInterrupt):
                raise error
        else:
            self.endings.end(run, Ending.RAISED, error)
            self.running.remove(run)

    def _was_stopped(self, run: Run, error: BaseException) -> bool:
        """True if it was the worker that ended this run. What a job raises then is its clean-up."""
        if isinstance(error, KeyboardInterrupt):
            # Ctrl-C comes to the main thread only.
            return run.function.is_async
        if isinstance(error, GeneratorExit):
            return not self._loop.is_running()
        cancelled = run.task is not None and run.task.cancelling() > 0
        return cancelled and not self._going()

    def _outcome(self, run: Run, value: Any, error: BaseException | None) -> Outcome | None:
        """What is stored of a run that has ended now; None if it is handed back."""
        if run.state == DETACHED and not self._going():
            return None
        if run.state != RUNNING:
            return self.endings.outcome(run, Ending.OVERDUE, too_long(run, error))
        if error is None:
            return Outcome("complete", value=value)
        return (
            None
            if self._was_stopped(run, error)
            else self.endings.outcome(run, Ending.RAISED, error)
        )

    def _over(self, run: Run, error: BaseException | None = None) -> None:
        """The end of a run whose end no longer counts."""
        if run.state == OVERDUE:
            self.endings.end(run, Ending.OVERDUE, too_long(run, error))
        else:
            self.late += 1
            log.info("%s %s has ended after all", run.function.name, run.id.decode())
        self.running.remove(run)
        self._touch()

    # Time limits

    def watch(self) -> None:
        """Looks after time limits from now on, for as long as anything runs."""
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeper = None
        now_s = mono_s()
        for run in self.running.overdue(now_s):
            if run.state == RUNNING and run.function.is_async:
                run.state = OVERDUE
                run.deadline_s = now_s + _GRACE_S
                run.task.cancel()
            else:
                self._detach(run)
        self._reap()
        if len(self.running):
            self.watch()

    def _reap(self) -> None:
        """Ends runs that were cancelled before their first step: their code has not seen it."""
        if _EAGER:
            return
        for run in self.running:
            if run.task is not None and run.task.done():
                self._raised(run, asyncio.CancelledError())

    def _detach(self, run: Run) -> None:
        """Settles a run that does not end: a thread, or a job that swallows its cancellation."""
        self.endings.end(run, Ending.OVERDUE, too_long(run, None))
        run.state = DETACHED
        run.deadline_s = INFINITE
        log.warning(
            "%s %s does not end; its slot stays taken until it does",
            run.function.name,
            run.id.decode(),
        )

    # The end of the worker

    async def ended(self) -> None:
        """Returns once nothing runs."""
        while len(self.running):
            tasks = [run.task for run in self.running if run.task is not None]
            # Those without a task are held, but not started: their turn comes next.
            await (asyncio.wait(tasks) if tasks else asyncio.sleep(0))
            self._reap()

    async def cancel(self, clean_up_s: float) -> None:
        """Cancels what still runs, and lets it clean up; it no longer fails, it is unfinished.

        Threads cannot be cancelled, and jobs that ignored it before will not listen now: neither is
        waited for.
        """
        tasks = []
        for run in self.running:
            if run.function is not None and run.function.is_async and run.state != DETACHED:
                tasks.append(run.task)
                if run.state == RUNNING:
                    run.task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=clean_up_s)

    def unfinished(self) -> list[bytes]:
        """The ids of all jobs that have not been settled. What they do from now on is lost."""
        found = self._unfinished
        self._unfinished = []
        for run in self.running:
            if run.state != DETACHED:
                run.state = DETACHED
                run.deadline_s = INFINITE
                found.append(run.entry)
        return found

    def close(self) -> bool:
        """Lets the threads go. True if one of them still runs a job."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._threads.close()
        return any(not run.function.is_async for run in self.running)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
