"""What the worker of `fastqctl demo` runs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastq.context import Context
from fastq.settings import WorkerSettings

_STDIN = 0


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


@asynccontextmanager
async def end_with_owner(settings: Any) -> AsyncIterator[None]:
    """Stops this worker when the demo has ended, however it did.

    Standard input is a pipe from the demo. Its end is also what a SIGKILL of the demo leaves.
    """
    loop = asyncio.get_running_loop()
    loop.add_reader(_STDIN, _stop, loop)
    try:
        yield
    finally:
        loop.remove_reader(_STDIN)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    loop.remove_reader(_STDIN)
    os.kill(os.getpid(), signal.SIGTERM)


class Worker(WorkerSettings):
    functions = (add,)
    lifespan = end_with_owner
    # A time that is measured must not depend on how long a job may take to end.
    shutdown_timeout = 1
