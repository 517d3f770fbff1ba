"""Settings for workers that the tests start as commands, each in a folder of its own."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastq import Context, WorkerSettings


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


async def fail() -> None:
    raise ValueError("on purpose")


async def mark(name: str) -> None:
    touch(name)


async def run_on() -> None:
    touch("running")
    await asyncio.sleep(3600)


async def block_the_loop(path: str) -> bool:
    """Whether a file stayed untouched while no other coroutine could run."""
    before_ns = touched_ns(path)
    time.sleep(2.5)  # noqa: ASYNC251
    return touched_ns(path) == before_ns


def touch(name: str) -> None:
    Path(name).touch()


def touched_ns(path: str) -> int:
    return Path(path).stat().st_mtime_ns


@asynccontextmanager
async def start_for_ever(settings: Any) -> AsyncIterator[None]:
    touch("starting")
    await asyncio.sleep(3600)
    yield


class Worker(WorkerSettings):
    functions = (add, fail, mark, run_on, block_the_loop)
    shutdown_timeout = 60


class SlowStart(Worker):
    lifespan = start_for_ever


class Misspelt(Worker):
    max_job = 3


def __getattr__(name: str) -> Any:
    """`IMPORTED_FOR_EVER`: as a module that takes its time when it is imported."""
    if name != "IMPORTED_FOR_EVER":
        raise AttributeError(name)
    touch("importing")
    time.sleep(3600)
    return Worker
