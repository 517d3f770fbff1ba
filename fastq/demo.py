"""`fastqctl demo`: a server, a worker process, jobs, and the figures of one run."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import click
import uvloop

from fastq._core import ConnectionLost, ReplyError
from fastq.client import Client
from fastq.connection import CannotConnect, Connection, connect
from fastq.demo_jobs import Worker, add
from fastq.demo_worker import DemoFailed, WorkerProcess
from fastq.embedded import EmbeddedServer
from fastq.errors import EnqueueError, EnqueueUncertain, ResultNotFound, ServerUnavailable
from fastq.functions import call
from fastq.keys import QueueKeys
from fastq.progress import Progress, Tell, progress
from fastq.redis_settings import RedisSettings

T = TypeVar("T")

_LOOK_S = 0.005
_STUCK_S = 60.0
_WARM_UP = 20
_ONE_AT_A_TIME = 1_000
_LATENCY_S = 5.0
_RESULT_S = 30.0
_SERVER_ERRORS = (
    *(CannotConnect, ConnectionLost, ReplyError),
    *(EnqueueError, EnqueueUncertain, ServerUnavailable),
)

NEXT = (
    "Next: list your functions in a class Worker(fastq.WorkerSettings) in settings.py, and run "
    "fastq-worker settings:Worker --embedded"
)


class ServerGone(click.ClickException):
    """The demo's own server did not live through it."""

    exit_code = 3


@dataclass(frozen=True)
class Figures:
    """What one run showed."""

    jobs: int
    enqueue_s: float
    run_s: float
    redis_cpu_s: float
    latencies_s: list[float]

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Name, value, and what exactly it is."""
        latency = "from enqueue to its result in the client, one job at a time"
        cpu_us = self.redis_cpu_s / self.jobs * 1e6
        yield "jobs/s", f"{self.jobs / self.run_s:,.0f}", "by one worker process, results kept"
        yield "enqueue/s", f"{self.jobs / self.enqueue_s:,.0f}", "by enqueue_many"
        yield "latency p50", f"{percentile(self.latencies_s, 50) * 1e3:.2f} ms", latency
        yield "latency p99", f"{percentile(self.latencies_s, 99) * 1e3:.2f} ms", "of the same"
        yield "Redis CPU", f"{cpu_us:.1f} µs", "a job, from its enqueue to its end"


def percentile(values: list[float], share: int) -> float:
    """The smallest value that at least `share` percent of them do not exceed."""
    return sorted(values)[-(-len(values) * share // 100) - 1]


def run(jobs: int, max_jobs: int) -> None:
    """Runs the demo and prints what it showed.

    `ConfigError` (it cannot run here), `DemoFailed`, `ServerGone` and `KeyboardInterrupt` come
    after worker and server have ended.
    """
    bar = progress("Jobs done", jobs)  # first: it may say that it cannot be drawn
    with EmbeddedServer.temporary() as server:
        click.echo(f"A Valkey server of its own on port {server.port}, a fastq-worker beside it")
        try:
            figures = _run(_measure(server.url, jobs, max_jobs, bar))
        except _SERVER_ERRORS as error:
            raise ServerGone(f"the demo's server is away: {error}") from error
    click.echo(f"{jobs:,} jobs, {max_jobs} at once:")
    for name, value, note in figures.lines():
        click.echo(f"  {name:<12}{value:>10}   {note}")
    click.echo(NEXT)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`, which Ctrl-C cancels: then `KeyboardInterrupt`."""
    # Held back while the loop is made and closed: it would be left half done, and say so.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_interruptible(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        # All that is left is to stop the server, which is not to be cut short.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)

    def cancel() -> None:
        # A second Ctrl-C would cancel what the first one has begun to stop.
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        task.cancel()

    loop.add_signal_handler(signal.SIGINT, cancel)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        return await task
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


async def _measure(url: str, jobs: int, max_jobs: int, bar: Progress) -> Figures:
    control = await connect(RedisSettings.from_url(url), name="fastq:demo")
    async with Client(url) as client:
        began_cpu_s = await _cpu_s(control)
        enqueue_s = await _enqueue(client, jobs)
        with WorkerProcess(url, max_jobs) as worker:
            with bar as tell:
                run_s = await _unless_ended(worker, _drain(control, jobs, tell))
            cpu_s = await _cpu_s(control) - began_cpu_s
            latencies_s = await _unless_ended(worker, _latencies(client))
    control.close()
    return Figures(jobs, enqueue_s, run_s, cpu_s, latencies_s)


async def _unless_ended(worker: WorkerProcess, work: Coroutine[Any, Any, T]) -> T:
    """The outcome of `work`; `DemoFailed` if the worker ends before it is there."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=0.1)
            worker.check()
        return await task
    finally:
        task.cancel()


async def _enqueue(client: Client, jobs: int) -> float:
    """Seconds that it took."""
    began_s = perf_counter()
    await client.enqueue_many((call(add, n, n) for n in range(jobs)), handles=False)
    return perf_counter() - began_s


async def _drain(control: Connection, jobs: int, tell: Tell) -> float:
    """Seconds from the worker's first sign of life until all jobs were settled.

    Looked at every few ms, and counted from the last look without a sign: rather too long.
    """
    keys = QueueKeys(Worker.queues[0])
    began_s = moved_s = perf_counter()
    before = 0
    while True:
        looked_s = perf_counter()
        up, left = await asyncio.gather(
            control.call("ZCARD", keys.beats), control.call("XLEN", keys.stream)
        )
        tell(done := jobs - left)
        if not up:
            began_s = looked_s
        if not left:
            break
        if done != before:
            before, moved_s = done, looked_s
        if looked_s - moved_s > _STUCK_S:
            raise DemoFailed(f"the worker stands still: {left:,} jobs left for {_STUCK_S:.0f} s")
        await asyncio.sleep(_LOOK_S)
    run_s = perf_counter() - began_s
    if dead := await control.call("XLEN", keys.dead):
        raise DemoFailed(f"{dead:,} jobs ended badly, which none should")
    return run_s


async def _latencies(client: Client) -> list[float]:
    """Seconds from before `enqueue` until the result is there, of one job after the other."""
    found: list[float] = []
    stop_s = perf_counter() + _LATENCY_S
    while len(found) < _WARM_UP + _ONE_AT_A_TIME and (not found or perf_counter() < stop_s):
        began_s = perf_counter()
        job = await client.enqueue(add, 1, 2)
        try:
            await job.result(timeout=_RESULT_S)
        except (TimeoutError, ResultNotFound) as error:
            raise DemoFailed(str(error)) from error
        found.append(perf_counter() - began_s)
    return found[_WARM_UP:] or found


async def _cpu_s(control: Connection) -> float:
    """What the server has used until now, its helper threads included."""
    info: bytes = await control.call("INFO", "cpu")
    used = re.findall(rb"^used_cpu_(?:user|sys):([\d.]+)", info, re.MULTILINE)
    return sum(map(float, used))
