"""How long a job takes to start and its result to arrive, on a machine that does little else.

1. One at a time: enqueue, wait for the result, again. Also counts calls that failed.
2. A steady load: so many enqueues a second, nobody waiting; results are read afterwards.

    python benches/latency.py [--count N] [--rate JOBS_A_SECOND] [--seconds S] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from typing import Any

import uvloop

import fastq
from measured import DEFAULT, NAMES, MeasuredServer
from processes import Side, Workers
from report import emit, machine_line, quantile, table, versions
from workload import started_ns

RESULT_TIMEOUT_S = 10
WARM_UP = 50


class OneAtATime:
    """Start and result delays in ms, and errors by type, of calls that follow each other."""

    def __init__(self) -> None:
        self.starts_ms: list[float] = []
        self.results_ms: list[float] = []
        self.errors: Counter[str] = Counter()

    async def run(self, client: fastq.Client, count: int) -> None:
        for _ in range(count):
            try:
                await self._one(client)
            except (fastq.FastqError, TimeoutError) as error:
                self.errors[type(error).__name__] += 1

    async def _one(self, client: fastq.Client) -> None:
        enqueued = time.monotonic_ns()
        job = await client.enqueue(started_ns)
        started = await job.result(timeout=RESULT_TIMEOUT_S)
        self.results_ms.append((time.monotonic_ns() - enqueued) / 1e6)
        self.starts_ms.append((started - enqueued) / 1e6)


async def steady(client: fastq.Client, rate: int, seconds: float) -> list[float]:
    """Start delays in ms at `rate` enqueues a second."""
    sent: list[tuple[int, asyncio.Task[fastq.Job[int]]]] = []
    begun = time.monotonic()
    while (now := time.monotonic()) < begun + seconds:
        # Late after a pause of the loop? Catch up, or a slow client would lower its own load.
        for _ in range(int((now - begun) * rate) - len(sent)):
            sent.append((time.monotonic_ns(), asyncio.create_task(_enqueue(client))))
        await asyncio.sleep(1 / rate)
    delays = []
    for enqueued, task in sent:
        started = await (await task).result(timeout=RESULT_TIMEOUT_S)
        delays.append((started - enqueued) / 1e6)
    return delays


async def _enqueue(client: fastq.Client) -> fastq.Job[int]:
    return await client.enqueue(started_ns)


def row(name: str, values: list[float], errors: int = 0) -> dict[str, Any]:
    p50, p99 = quantile(values, 0.5), quantile(values, 0.99)
    return {"what": name, "p50 ms": p50, "p99 ms": p99, "n": len(values), "errors": errors}


async def measure(url: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    async with fastq.Client(url) as client:
        await OneAtATime().run(client, WARM_UP)
        single = OneAtATime()
        await single.run(client, options.count)
        delays = await steady(client, options.rate, options.seconds)
    for name, count in single.errors.items():
        print(f"{count} x {name}")
    errors = single.errors.total()
    return [
        row("enqueue to start, one at a time", single.starts_ms, errors),
        row("enqueue to result, one at a time", single.results_ms, errors),
        row(f"enqueue to start at {options.rate:,} jobs/s", delays),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Delays between enqueue, start and result.")
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    with MeasuredServer(options.server) as server, Workers(Side().worker(), server) as workers:
        workers.wait_until_reading("xreadgroup")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            rows = runner.run(measure(server.url(), options))
    machine = f"{machine_line(server.version)}, {versions('fastq-worker', 'uvloop')}"
    emit(options.json, {"machine": machine, "rows": rows}, lambda: f"{table(rows)}\n{machine}")


if __name__ == "__main__":
    main()
