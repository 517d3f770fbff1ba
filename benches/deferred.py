"""What deferring costs: how late jobs are, what a crowd does to others, what idle workers send.

1. `lateness`: single jobs at random times, by the server's clock. None may be early.
2. `crowd`: so many jobs due at one moment, while somebody enqueues: how long that takes, how long
   each script holds up the server (its slow log), and how long all of them take to run.
3. `idle`: workers with a cron entry and deferred jobs in the far future: commands a second, those
   that clients send and those that scripts call.

    python benches/deferred.py lateness [--count N]
    python benches/deferred.py crowd [--jobs N]
    python benches/deferred.py idle [--workers N] [--seconds S]
    with each: [--server NAME] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import uvloop

import fastq
from measured import DEFAULT, NAMES, MeasuredServer
from processes import Side, Workers
from report import emit, machine_line, quantile, table, versions
from timed_workload import noop, now_ms

Row = dict[str, Any]
WITHIN_S = 10
SLOW_US = 10_000
# Long enough for the enqueueing of any crowd to be over before it is due.
CROWD_A_SECOND = 8_000


async def lateness(client: fastq.Client, options: argparse.Namespace, server: Any) -> Row:
    now = datetime.now(UTC)
    dues = [now + timedelta(seconds=1 + WITHIN_S * random.random()) for _ in range(options.count)]
    jobs = [await client.options(defer_until=due).enqueue(now_ms) for due in dues]
    ran = await asyncio.gather(*(job.result(timeout=60) for job in jobs))
    late = [ms - due.timestamp() * 1000 for ms, due in zip(ran, dues, strict=True)]
    return {
        "jobs": len(late),
        "early": sum(ms < 0 for ms in late),
        "p50 ms": quantile(late, 0.5),
        "p99 ms": quantile(late, 0.99),
        "worst ms": max(late),
    }


async def crowd(client: fastq.Client, options: argparse.Namespace, server: MeasuredServer) -> Row:
    due = datetime.now(UTC) + timedelta(seconds=2 + options.jobs / CROWD_A_SECOND)
    producer = client.options(defer_until=due)
    started = time.monotonic()
    await producer.enqueue_many((fastq.call(noop) for _ in range(options.jobs)), handles=False)
    enqueueing_s = time.monotonic() - started
    if (left_s := (due - datetime.now(UTC)).total_seconds()) < 0:
        raise SystemExit(f"enqueueing took {-left_s:.1f} s too long: nothing was measured")
    await asyncio.sleep(left_s - 0.1)
    server.wire.calls([("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US), ("SLOWLOG", "RESET")])
    before = server.cpu_s()
    delays = await enqueue_until_ended(client, server)
    slow = server.wire.call("SLOWLOG", "LEN")
    return {
        "jobs": options.jobs,
        "enqueued a second": options.jobs / enqueueing_s,
        "done s after due": (datetime.now(UTC) - due).total_seconds(),
        "Redis µs/job": (server.cpu_s() - before) / options.jobs * 1e6,
        "enqueue p50 ms": quantile(delays, 0.5),
        "enqueue p99 ms": quantile(delays, 0.99),
        "worst ms": max(delays),
        f"scripts over {SLOW_US // 1000} ms": slow,
    }


async def enqueue_until_ended(client: fastq.Client, server: MeasuredServer) -> list[float]:
    """How long somebody's plain jobs take to be enqueued meanwhile, in ms."""
    delays = []
    while server.wire.call("ZCARD", "{fastq:default}:deferred"):
        began = time.monotonic()
        await client.enqueue(noop)
        delays.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(0.002)
    await asyncio.to_thread(server.wait_until_empty)
    return delays


async def idle(client: fastq.Client, options: argparse.Namespace, server: MeasuredServer) -> Row:
    far = client.options(defer_by=timedelta(days=1))
    await far.enqueue_many((fastq.call(noop) for _ in range(100)), handles=False)
    await asyncio.sleep(5)  # the wakes of that, and the first beats, are no idling
    before = processed(server)
    sent, seconds = await watch(server, options.seconds)
    return {
        "workers": options.workers,
        "sent by clients/s": sent / seconds,
        "in all, scripts' own included/s": (processed(server) - before - sent) / seconds,
    }


def processed(server: MeasuredServer) -> int:
    """All calls of commands, those within scripts included."""
    stats = server.wire.call("INFO", "commandstats").decode()
    return sum(int(calls) for calls in re.findall(r"calls=(\d+)", stats))


async def watch(server: MeasuredServer, seconds: float) -> tuple[int, float]:
    """Commands that clients send, but not this one: MONITOR tells them from those of scripts."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"*1\r\n$7\r\nMONITOR\r\n")
    await reader.readline()
    began, sent = time.monotonic(), 0
    while (left_s := began + seconds - time.monotonic()) > 0:
        try:
            line = await asyncio.wait_for(reader.readline(), left_s)
        except TimeoutError:
            break
        sent += b" lua] " not in line
    writer.close()
    return sent, time.monotonic() - began


COMMANDS: dict[str, Callable[[fastq.Client, argparse.Namespace, Any], Awaitable[Row]]] = {
    "lateness": lateness,
    "crowd": crowd,
    "idle": idle,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What deferring costs.")
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=0, help="1; 40 where they idle")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


async def measure(options: argparse.Namespace, server: MeasuredServer) -> Row:
    async with fastq.Client(server.url(), connect_timeout=60) as client:
        await client.enqueue(noop)  # connects
        return await COMMANDS[options.what](client, options, server)


def main() -> None:
    options = arguments()
    options.workers = options.workers or (40 if options.what == "idle" else 1)
    command = Side().command("fastq-worker")
    worker = [command, "benches.timed_workload:Worker", "--max-jobs", "25"]
    with MeasuredServer(options.server) as server:
        with Workers(worker, server, options.workers) as workers:
            workers.wait_until_reading("xreadgroup")
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                row = runner.run(measure(options, server))
        machine = f"{machine_line(server.version)}, {versions('fastq-worker', 'uvloop')}"
    emit(options.json, {"machine": machine, "rows": [row]}, lambda: f"{table([row])}\n{machine}")


if __name__ == "__main__":
    main()
