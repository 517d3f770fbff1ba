"""The settings example of the documentation, as users write it; both type checkers must take it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import fastq
from fastq import Context, Reject, Retry, WorkerSettings, cron, exponential


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


@fastq.job(timeout=30, max_tries=5, retry_on=(ConnectionError,), keep_result=60, name="mail")
async def send_email(ctx: Context, to: str) -> None:
    if not to:
        raise Reject("no address")
    raise Retry(defer=5)


@fastq.job(retry_on=TimeoutError, backoff=lambda tries: 2.0 * tries)
def thumbnail(path: str) -> str:
    return path


async def refresh() -> None: ...


async def report(kind: str) -> None: ...


class Database:
    pass


@asynccontextmanager
async def lifespan(settings: object) -> AsyncGenerator[dict[str, Database]]:
    yield {"db": Database()}


def waiting(tries: int) -> float:
    return 1.5**tries


class Worker(WorkerSettings):
    functions = [add, send_email, thumbnail]
    cron_jobs = [
        cron("*/5 * * * *", refresh),
        cron("30 2 * * *", fastq.call(report, "daily"), timezone="Europe/Berlin"),
        cron("0 0 3 * * MON", fastq.call(report, "weekly").options(max_tries=1), catch_up=True),
    ]
    redis = "redis://localhost:6379/0"
    queues = ["default"]
    max_jobs = 100
    retry_on = (ConnectionError, OSError)
    backoff = waiting
    keep_dead = (1_000, timedelta(days=1))
    lifespan = lifespan


class Other(WorkerSettings):
    functions = [add]
    backoff = exponential(base=0.5, jitter=False)
    retry_on = ConnectionError
    keep_dead = (1_000, None)
