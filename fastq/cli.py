"""`fastq-worker`: runs a worker from the command line."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click
import uvloop

from fastq import __version__
from fastq.embedded import EmbeddedServer
from fastq.errors import ConfigError, RedisAway
from fastq.health import AWAY, check, touch_each_second
from fastq.loading import load_settings
from fastq.settings import Settings
from fastq.worker import Worker

log = logging.getLogger("fastq.cli")

DONE, JOB_FAILED, USAGE = 0, 1, 2
SECOND_SIGNAL = 1
INTERRUPTED = 130

_LEVELS = ("debug", "info", "warning", "error", "critical")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("settings")
@click.option("--burst", is_flag=True, help="Exit when the queue and the running jobs are done.")
@click.option("--queues", metavar="NAME", help="Serve this queue instead of the settings' one.")
@click.option("--max-jobs", type=int, metavar="N", help="Jobs to run at once.")
@click.option("--redis", metavar="URL", help="Server to use instead of the settings' one.")
@click.option("--embedded", is_flag=True, help="Start a Valkey server on the URL's own port.")
@click.option("--check", is_flag=True, help="Only tell whether such a worker is up on this host.")
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Touched each second while the worker's loop turns.",
)
@click.option("--log-level", type=click.Choice(_LEVELS, case_sensitive=False), default="info")
@click.version_option(__version__, prog_name="fastq-worker")
def main(
    settings: str,
    burst: bool,
    queues: str | None,
    max_jobs: int | None,
    redis: str | None,
    embedded: bool,
    check: bool,
    health_file: Path | None,
    log_level: str,
) -> None:
    """Run the jobs of a queue.

    SETTINGS names a settings class or module: module:Name or module.Name.

    Exit codes: 0 done, also after SIGTERM; 1 a job ended badly in a burst, or a second signal came;
    2 wrong usage, settings or URL; 3 Redis is away at the start of a burst; 130 after Ctrl-C.
    """
    _set_up_logging(log_level)
    # Until the worker takes its signals: imports of the settings and a server's start may last.
    signal.signal(signal.SIGTERM, _end_early)
    overrides: dict[str, Any] = {
        "queues": None if queues is None else [name.strip() for name in queues.split(",")],
        "max_jobs": max_jobs,
        "redis": redis,
        "burst": burst or None,
    }
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        read = Settings.read(load_settings(settings), **given)
        code = _check(read) if check else _serve(read, embedded, health_file)
    except ConfigError as error:
        _say(f"Error: {error}")
        code = USAGE
    except KeyboardInterrupt:
        _say("Interrupted")
        code = INTERRUPTED
    sys.stdout.flush()
    sys.exit(code)


def _set_up_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )


def _end_early(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(DONE)


def _say(text: str) -> None:
    click.echo(text, err=True)


def _run(main: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def _check(settings: Settings) -> int:
    code, text = _run_check(settings)
    _say(text)
    return code


def _run_check(settings: Settings) -> tuple[int, str]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(check(settings))


def _serve(settings: Settings, embedded: bool, health_file: Path | None) -> int:
    server = EmbeddedServer.for_url(settings.redis.url) if embedded else None
    with server or contextlib.nullcontext():
        code, threads_left = _run_worker(settings, server, health_file)
        # What is left is to stop the server, which must have the time to save.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if threads_left:
        # A thread that still runs a job would keep the process; its job was handed back.
        logging.shutdown()
        os._exit(code)
    return code


def _run_worker(
    settings: Settings, server: EmbeddedServer | None, health_file: Path | None
) -> tuple[int, bool]:
    worker = Worker(settings)
    _calm_collector()
    try:
        code = _run(_work(worker, server, health_file))
    except RedisAway as error:
        _say(f"Error: {error}")
        code = AWAY
    return code, worker.threads_left


def _calm_collector() -> None:
    """Garbage collection fits for a process that makes and drops thousands of objects a turn.

    Jobs are freed by reference counts; the default of a pass each 700 objects finds nothing but
    what was loaded at start, over and over.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


async def _work(worker: Worker, server: EmbeddedServer | None, health_file: Path | None) -> int:
    signals = Signals(worker)
    beside = [asyncio.ensure_future(touch_each_second(health_file))] if health_file else []
    if server is not None:
        beside.append(asyncio.ensure_future(_watch(server)))
    try:
        await worker.run()
    except asyncio.CancelledError:
        if not signals.seen:
            raise
    finally:
        for task in beside:
            task.cancel()
    if signals.seen:
        return signals.exit_code
    return JOB_FAILED if worker.settings.burst and worker.failed else DONE


async def _watch(server: EmbeddedServer) -> None:
    """Tells what the worker cannot know: that a server which is away will not come back."""
    while not server.died():  # noqa: ASYNC110 (it is another process that ends)
        await asyncio.sleep(0.5)
    log.error(
        "The embedded server has ended by itself; the end of .fastq/server.log may say why. "
        "Stop this worker and start it again."
    )


class Signals:
    """SIGTERM and SIGINT stop the worker; a second one makes it hurry."""

    def __init__(self, worker: Worker) -> None:
        self.seen: list[int] = []
        self._worker = worker
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take, number)

    @property
    def exit_code(self) -> int:
        if len(self.seen) > 1:
            return SECOND_SIGNAL
        return INTERRUPTED if self.seen == [signal.SIGINT] else DONE

    def _take(self, number: int) -> None:
        self.seen.append(number)
        self._worker.ask_to_stop()
        # Still in `lifespan`: nothing was read, so there is nothing to wait for.
        if not self._worker.serving and self._task is not None:
            self._task.cancel()
