"""Sync job functions: each runs in a thread, as many at once as there are slots."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastq._core import Run

# How a run ended: by an error, or with a value.
Ran = tuple[BaseException | None, Any]


class Threads:
    """A pool with a thread for each slot, so that a sync job never waits for one."""

    def __init__(self, count: int) -> None:
        self._count = count
        # Made by the first sync job: most workers have none.
        self._pool: ThreadPoolExecutor | None = None

    async def call(self, run: Run) -> Ran:
        """Calls the run's function in a thread, in a copy of the task's context."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="fastq-job")
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, context.run, _call, run)

    def close(self) -> None:
        """Lets the threads go once they have ended what they run; waits for none."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _call(run: Run) -> Ran:
    # As a value: StopIteration cannot be raised into a future, and SystemExit would end the thread.
    try:
        return None, run.call()
    except BaseException as error:
        return error, None
