"""Settings of the worker that is measured: `fastq-worker benches.workload:Worker`.

Only fastq is imported, so the file works in any environment that has some fastq installed. The
server's URL comes from $FASTQ_REDIS_URL, `max_jobs` from the command line.
"""

from __future__ import annotations

import time

from fastq import WorkerSettings


async def noop() -> None:
    return None


async def started_ns() -> int:
    """When the job started. The monotonic clock is the machine's, so the producer's fits it."""
    return time.monotonic_ns()


class Worker(WorkerSettings):
    functions = (noop, started_ns)
