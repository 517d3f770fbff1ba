"""Settings as users write them. Also read at run time, by `test_settings.py`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import fastq
from fastq import Context, Outcome, RedisSettings, WorkerSettings


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


@fastq.job(timeout=30, keep_result=60, name="mail")
async def send_email(ctx: Context, to: str) -> None: ...


def thumbnail(path: str) -> str:
    return path


@asynccontextmanager
async def lifespan(settings: type[WorkerSettings]) -> AsyncGenerator[dict[str, int]]:
    yield {"db": 1}


async def on_job_start(ctx: Context) -> None: ...


async def ended(ctx: Context, outcome: Outcome) -> str:
    return outcome.status


class Worker(WorkerSettings):
    functions = [add, send_email, thumbnail]
    redis = "redis://localhost:6379/0"
    queues = ["high"]
    max_jobs = 50
    lifespan = lifespan
    on_job_start = on_job_start
    on_job_end = ended


class Carrier:
    def dumps(self, value: Any, /) -> bytes:
        return repr(value).encode()

    def loads(self, data: bytes, /) -> object:
        return data


class Small(Worker):
    queues = ["small"]
    max_jobs = 5


class Elaborate(WorkerSettings):
    functions = (add, "json:dumps")
    redis = RedisSettings(host="localhost", db=1)
    queues = ("low",)
    job_timeout = timedelta(minutes=5)
    keep_result = None
    shutdown_timeout = 2.5
    serializer = Carrier()
    max_payload = 1024
    burst = True
    lifespan = None


class Configured(WorkerSettings):
    """An instance is taken, too."""

    functions = [add]

    def __init__(self, url: str, jobs: int) -> None:
        self.redis = url
        self.max_jobs = jobs


async def no_context(name: str) -> None: ...


def not_async(ctx: Context) -> None: ...


class Wrong(WorkerSettings):
    functions = [5]  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    redis = 6379  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    queues = [1]  # type: ignore[list-item]  # pyright: ignore[reportAssignmentType]
    max_jobs = "50"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    job_timeout = "5"  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    shutdown_timeout = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    serializer = 5  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    burst = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    lifespan = not_async  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    on_job_start = not_async  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    on_job_end = no_context  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
