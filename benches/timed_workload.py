"""Settings of the worker of `deferred.py`: jobs that tell when they ran, and a far cron entry."""

from __future__ import annotations

import time

from fastq import WorkerSettings, cron


async def noop() -> None:
    return None


async def now_ms() -> float:
    """The server runs on this machine, so its clock, which decides what is due, is this one."""
    return time.time() * 1000


class Worker(WorkerSettings):
    functions = (noop, now_ms)
    cron_jobs = (cron("0 0 29 2 *", noop),)
