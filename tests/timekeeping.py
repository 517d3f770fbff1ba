"""Workers whose leaders get killed: jobs that are counted, and a cron entry of every second.

`fastq-worker timekeeping:Timed --redis URL`; the counts are on the server that `counted` names.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import cast

from counted import Counted, count
from fastq import Context, cron
from fastq.connection import Connection

# Hours that the own clock of such a worker is off.
ASTRAY = "FASTQ_TEST_ASTRAY_H"


async def tick(ctx: Context) -> None:
    """Counts this run; how late its entry was added is in the ids of both."""
    counter = cast(Mapping[str, Connection], ctx.state)["counter"]
    await counter.call("HSETNX", "entries", ctx.job_id, ctx._run.entry)
    await counter.call("HINCRBY", "ran", ctx.job_id, 1)


class Timed(Counted):
    functions = (count, tick)
    cron_jobs = (cron("* * * * * *", tick, name="tick", unique=False),)


if hours := float(os.environ.get(ASTRAY, "0")):
    _time = time.time
    time.time = lambda: _time() + hours * 3600
