"""Enqueues no-op jobs and says how fast: one line of JSON.

A process of its own, so that it can run in the environment of the fastq that is measured.

    python benches/producer.py --url URL --jobs N [--concurrent C | --due-in SECONDS]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import uvloop

import fastq
from workload import noop

Figures = dict[str, float]


async def many(client: fastq.Client, jobs: int) -> None:
    await client.enqueue_many(fastq.call(noop) for _ in range(jobs))


async def deferred(client: fastq.Client, jobs: int, due: datetime) -> None:
    """All are due at the same moment."""
    producer = client.options(defer_until=due)
    await producer.enqueue_many((fastq.call(noop) for _ in range(jobs)), handles=False)


async def concurrent(client: fastq.Client, jobs: int, at_once: int) -> None:
    """`at_once` calls of enqueue in flight: a web server under load."""
    for start in range(0, jobs, at_once):
        count = min(at_once, jobs - start)
        await asyncio.gather(*(client.enqueue(noop) for _ in range(count)))


async def timed(url: str, jobs: int, work: Callable[[fastq.Client], Awaitable[Any]]) -> Figures:
    async with fastq.Client(url) as client:
        # The first job connects and loads what is loaded late; it is not counted in the time.
        await client.enqueue(noop)
        started, cpu = time.monotonic(), time.process_time()
        await work(client)
        seconds = time.monotonic() - started
        cpu = time.process_time() - cpu
    rate = (jobs - 1) / seconds
    return {"started_at": started, "enqueue_s": rate, "producer_us": cpu / jobs * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description="Enqueue no-op jobs.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--concurrent", type=int, default=0)
    parser.add_argument("--due-in", type=float, default=0)
    options = parser.parse_args()
    left, at_once = options.jobs - 1, options.concurrent

    due = datetime.now(UTC) + timedelta(seconds=options.due_in)

    def work(client: fastq.Client) -> Awaitable[Any]:
        if options.due_in:
            return deferred(client, left, due)
        return concurrent(client, left, at_once) if at_once else many(client, left)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(timed(options.url, options.jobs, work))
        # On the clock of the harness, which is the machine's.
        figures["due_at"] = time.monotonic() + (due - datetime.now(UTC)).total_seconds()
        print(json.dumps(figures), flush=True)
        # Freeing 200,000 handles would hold up a harness that watches jobs end.
        os._exit(0)


if __name__ == "__main__":
    main()
