"""The same no-op job for arq: settings of its worker, and a producer when run as a program."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings

AT_ONCE = 500


def settings() -> RedisSettings:
    return RedisSettings.from_dsn(os.environ.get("FASTQ_REDIS_URL", "redis://127.0.0.1:6379"))


async def noop(ctx: dict[str, Any]) -> None:
    return None


class Worker:
    functions = (noop,)
    redis_settings = settings()
    max_jobs = 25
    keep_result = 600


async def produce(url: str, jobs: int, due_in_s: float) -> dict[str, float]:
    """All at once, or all due at the same moment."""
    pool = await create_pool(RedisSettings.from_dsn(url))
    started = time.monotonic()
    due = datetime.now(UTC) + timedelta(seconds=due_in_s) if due_in_s else None
    for start in range(0, jobs, AT_ONCE):
        count = min(AT_ONCE, jobs - start)
        await asyncio.gather(*(pool.enqueue_job("noop", _defer_until=due) for _ in range(count)))
    seconds = time.monotonic() - started
    await pool.aclose()
    return {"started_at": started, "enqueue_s": jobs / seconds, "due_at": started + due_in_s}


if __name__ == "__main__":
    print(
        json.dumps(asyncio.run(produce(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))),
        flush=True,
    )
    os._exit(0)  # as producer.py does
