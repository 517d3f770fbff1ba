"""One job's life: from the decoded entry to its end, whatever that is."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import msgspec

from fastq._core import (
    DETACHED,
    OVERDUE,
    RUNNING,
    Function,
    Keep,
    Run,
    RunningSet,
    UnknownFunction,
)
from fastq.clock import RedisClock, mono_s
from fastq.context import Context, JobScope
from fastq.decoders import ArgumentsError, arguments_decoder
from fastq.functions import FunctionInfo, Unset
from fastq.outcome import Ending, Envelope, ErrorText, Outcome, decide
from fastq.scripts import Part
from fastq.settings import Settings

log = logging.getLogger("fastq.executor")

_SWEEP_S = 0.1
# A cancelled job may clean up for this long before it counts as one that ignores cancellation.
_GRACE_S = 1.0
_HOOK_LIMIT_S = 30.0
_NULL = b"null"


class Settles(Protocol):
    """What the executor needs of the settler."""

    def complete(self, run: Run, value: bytes, /) -> bool: ...
    def touch(self) -> None: ...
    def bury(
        self, run: Run, keep_ms: int, envelope: bytes, fields: tuple[Part, ...], /
    ) -> None: ...


class _EntryOptions(msgspec.Struct):
    """Field `o` of an entry, as far as this version knows it."""

    timeout: float | msgspec.UnsetType | None = msgspec.UNSET


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
        self._settles: Settles
        self._complete: Callable[[Run, bytes], bool]
        self._dump = settings.codec.dump_value
        self._pool: ThreadPoolExecutor | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._observed = bool(
            settings.on_job_start or settings.on_job_end or log.isEnabledFor(logging.DEBUG)
        )
        self._unfinished: list[bytes] = []
        self.failed = 0
        self.late = 0
        functions = {n.encode(): self._function(i) for n, i in settings.functions.items()}
        self.running = RunningSet(
            settings.max_jobs,
            functions,
            spawn=self._spawner(),
            refuse=self._refuse,
            configure=_configure,
        )

    def attach(self, settles: Settles, complete: Callable[[Run, bytes], bool]) -> None:
        """Where ends are told. `complete` is called for each success: it is the core's own."""
        self._settles = settles
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
            keep=keep_of(None if kept_s is None else kept_s * 1000),
            is_async=info.is_async,
            context=context,
            execute=self._life(info),
        )

    def _life(self, info: FunctionInfo) -> Callable[[Run], Coroutine[Any, Any, None]]:
        if self._observed:
            how = self._call_async if info.is_async else self._in_thread
            return partial(self._run_observed, how)
        return self._run_async if info.is_async else self._run_in_thread

    def _spawner(self) -> Callable[..., asyncio.Task[None]]:
        # Eager tasks save a loop turn a job; each still runs in a copy of the context of its own.
        if sys.version_info >= (3, 12):
            return partial(asyncio.Task, loop=self._loop, eager_start=True)
        return partial(asyncio.Task, loop=self._loop)

    # The lives of runs

    async def _run_async(self, run: Run) -> None:
        self._watch()
        try:
            value = await run.call()
            data = _NULL if value is None else self._dump(value)
        except BaseException as error:
            self._raised(run, error)
            return
        if not self._complete(run, data):
            self._over(run)

    async def _run_in_thread(self, run: Run) -> None:
        self._watch()
        try:
            value = await self._in_thread(run)
            data = self._dump(value)
        except BaseException as error:
            self._raised(run, error)
            return
        if not self._complete(run, data):
            self._over(run)

    async def _call_async(self, run: Run) -> Any:
        return await run.call()

    async def _run_observed(self, life: Callable[[Run], Any], run: Run) -> None:
        """A run with hooks around it. It holds its slot, and its result, until they have ended."""
        self._watch()
        error: BaseException | None = None
        value, data = None, b""
        log.debug("%s %s starts", run.function.name, run.id.decode())
        try:
            await self._hook(run, self._settings.on_job_start)
            value = await life(run)
            data = self._dump(value)
        except BaseException as raised:
            error = raised
        # What it is told is what is stored: from here on the run's own time limit is over.
        run.deadline_s = INFINITE
        if run.state == RUNNING and not self._was_stopped(error):
            await self._hook(run, self._settings.on_job_end, _outcome(value, error))
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
        except asyncio.CancelledError:
            # The job's own time limit or the worker's end; after the job's end it changes nothing.
            if not more:
                raise
        except Exception:
            log.exception("%s raised; the job goes on", getattr(hook, "__name__", hook))

    async def _in_thread(self, run: Run) -> Any:
        pool = self._pool
        if pool is None:
            pool = self._pool = ThreadPoolExecutor(
                self._settings.max_jobs, thread_name_prefix="fastq-job"
            )
        context = contextvars.copy_context()
        error, value = await self._loop.run_in_executor(pool, context.run, _call, run)
        if error is not None:
            raise error
        return value

    # Ends

    def _refuse(self, run: Run, error: Exception) -> None:
        """A job that cannot even start."""
        if isinstance(error, UnknownFunction):
            name = (run.name or b"").decode(errors="replace")
            error = LookupError(
                f"No function {name!r} is registered in this worker. "
                "Add it to functions, or deploy the workers that know it."
            )
            self._end(run, Ending.UNKNOWN_FUNCTION, error)
        elif isinstance(error, ArgumentsError):
            self._end(run, Ending.UNFIT_ARGUMENTS, error)
        else:
            self._end(run, Ending.UNDECODABLE, error)
        self.running.remove(run)

    def _raised(self, run: Run, error: BaseException) -> None:
        if run.state != RUNNING:
            self._over(run, error)
        elif self._was_stopped(error):
            self._unfinished.append(run.id)
            self.running.remove(run)
            if isinstance(error, KeyboardInterrupt):
                raise error
        else:
            self._end(run, Ending.RAISED, error)
            self.running.remove(run)

    def _was_stopped(self, error: BaseException | None) -> bool:
        """True if it was the worker that ended this run. What a job raises then is its clean-up."""
        if isinstance(error, GeneratorExit | KeyboardInterrupt):
            return True
        return error is not None and not self._going()

    def _over(self, run: Run, error: BaseException | None = None) -> None:
        """The end of a run whose end no longer counts."""
        if run.state == OVERDUE:
            self._end(run, Ending.OVERDUE, self._too_long(run, error))
        else:
            self.late += 1
            log.info("%s %s has ended after all", run.function.name, run.id.decode())
        self.running.remove(run)
        self._settles.touch()

    def _end(self, run: Run, ending: Ending, error: BaseException) -> None:
        verdict = decide(ending)
        text = ErrorText.of(error)
        offset_ms, now_ms = self._clock.offset_ms, self._clock.now_ms()
        started_ms = int(run.started_s * 1000 + offset_ms) if run.started_s else now_ms
        body = msgspec.json.encode(text)
        envelope = Envelope(verdict.status, verdict.reason, started_ms, now_ms, run.tries, body)
        self.failed += 1
        log.warning(
            "%s %s in queue %r ended badly (%s): %s: %s",
            (run.name or b"?").decode(errors="replace"),
            run.id.decode(),
            self._scope.queue,
            verdict.reason,
            text.type,
            text.message,
            exc_info=error if ending is Ending.RAISED else None,
        )
        self._settles.bury(
            run, _keep_ms(run.keep), envelope.pack(), dead_fields(run, verdict.reason, body)
        )

    def _too_long(self, run: Run, error: BaseException | None) -> TimeoutError:
        late = TimeoutError(f"ran longer than its time limit of {run.limit_s:g} s")
        late.__cause__ = error
        return late

    # Time limits

    def _watch(self) -> None:
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
        if len(self.running):
            self._watch()

    def _detach(self, run: Run) -> None:
        """Settles a run that does not end: a thread, or a job that swallows its cancellation."""
        self._end(run, Ending.OVERDUE, self._too_long(run, None))
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

    def cancel(self) -> None:
        """Cancels what still runs; it no longer fails, it is unfinished."""
        for run in self.running:
            if run.state == RUNNING and run.task is not None and run.function.is_async:
                run.task.cancel()

    def unfinished(self) -> list[bytes]:
        """The ids of all jobs that have not been settled. What they do from now on is lost."""
        found = self._unfinished
        self._unfinished = []
        for run in self.running:
            if run.state != DETACHED:
                run.state = DETACHED
                run.deadline_s = INFINITE
                found.append(run.id)
        return found

    def close(self) -> bool:
        """Lets the threads go. True if one of them still runs a job."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        return any(not run.function.is_async for run in self.running)


INFINITE = float("inf")


def _call(run: Run) -> tuple[BaseException | None, Any]:
    # As a value: StopIteration cannot be raised into a future, and SystemExit would end the thread.
    try:
        return None, run.call()
    except BaseException as error:
        return error, None


def _outcome(value: Any, error: BaseException | None) -> Outcome:
    if error is None:
        return Outcome("complete", value=value)
    verdict = decide(Ending.RAISED)
    return Outcome(verdict.status, verdict.reason, error=error)


def _configure(run: Run) -> None:
    """Options that came with the entry go before the function's own."""
    if run.keep_field is not None:
        kept_ms = int(run.keep_field)
        run.keep = keep_of(None if kept_ms < 0 else kept_ms)
    if run.options is not None:
        timeout_s = msgspec.json.decode(run.options, type=_EntryOptions).timeout
        if timeout_s is not msgspec.UNSET:
            run.limit_s = INFINITE if timeout_s is None else timeout_s


def keep_of(kept_ms: float | None) -> Keep | None:
    """How the core keeps results: None for not at all. `kept_ms` 0 is that, None is for ever."""
    if kept_ms is None:
        return Keep(None)
    return Keep(max(1, int(kept_ms))) if kept_ms else None


def _keep_ms(keep: Keep | None) -> int:
    """As scripts have it: 0 for not at all, -1 for ever."""
    if keep is None:
        return 0
    return -1 if keep.ms is None else keep.ms


def dead_fields(run: Run, reason: str, error: bytes) -> tuple[Part, ...]:
    """An entry of `dead`: everything needed to run the job again, and why it ended."""
    fields: list[Part] = ["id", run.id, "reason", reason, "error", error, "tries", run.tries]
    for name, value in (
        ("f", run.name),
        ("d", run.payload),
        ("o", run.options),
        ("k", run.keep_field),
    ):
        if value is not None:
            fields += (name, value)
    return tuple(fields)
