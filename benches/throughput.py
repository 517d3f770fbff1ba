"""How fast one worker runs jobs that do nothing, results kept, beside the floor.

Each round fills the queue with `enqueue_many`, then starts `fastq-worker --burst`. Floor and worker
take turns, and each figure is the median of the rounds: machines drift.

    python benches/throughput.py [--jobs N] [--max-jobs 25 1000] [--rounds R] [--server NAME]
                                 [--concurrent] [--rss] [--json]
"""

from __future__ import annotations

import argparse
from typing import Any

from burst import measure_burst, watch_burst
from floor import measure_once
from measured import DEFAULT, NAMES, MeasuredServer
from processes import Side
from report import emit, machine_line, medians, table, versions

FLOOR_JOBS = 100_000
WARM_SHARE = 0.1
COLUMNS = {
    "max_jobs": "max_jobs",
    "jobs_s": "jobs/s",
    "fraction": "of floor",
    "floor_s": "floor jobs/s",
    "enqueue_s": "enqueue_many/s",
    "redis_us": "Redis µs/job",
    "redis_run_us": "of it running",
    "worker_us": "worker µs/job",
    "floor_server_us": "floor: server µs",
    "floor_asyncio_us": "floor: asyncio µs",
    "rss_mb": "RSS MB",
}


def one_round(server: MeasuredServer, side: Side, jobs: int, max_jobs: int) -> dict[str, Any]:
    floor = measure_once(server, max_jobs, min(jobs, FLOOR_JOBS))
    figures = measure_burst(server, side, jobs, max_jobs)
    return figures | {
        "fraction": figures["jobs_s"] / floor.jobs_s,
        "floor_s": floor.jobs_s,
        "floor_server_us": floor.server_us,
        "floor_asyncio_us": floor.asyncio_us,
    }


def throughput(server: MeasuredServer, options: argparse.Namespace) -> list[dict[str, Any]]:
    rounds: dict[int, list[dict[str, Any]]] = {max_jobs: [] for max_jobs in options.max_jobs}
    for _ in range(options.rounds):
        for max_jobs, done in rounds.items():
            done.append(one_round(server, Side(), options.jobs, max_jobs))
    return [medians(done) for done in rounds.values()]


def rss_growth(server: MeasuredServer, jobs: int, max_jobs: int) -> dict[str, Any]:
    """How much a worker grows over `jobs` jobs, after a tenth more of them to warm it up."""
    total = int(jobs * (1 + WARM_SHARE))
    server.empty()
    Side().produce(server, total)
    samples = watch_burst(server, Side(), total, max_jobs)
    warm = next(s for s in samples if s.left <= jobs)
    end = next(s for s in reversed(samples) if s.rss)
    return {
        "max_jobs": max_jobs,
        "jobs": jobs,
        "rss_warm_mb": warm.rss / 1e6,
        "rss_end_mb": end.rss / 1e6,
        "growth_mb": (end.rss - warm.rss) / 1e6,
    }


def concurrent_enqueue(server: MeasuredServer, jobs: int, rounds: int) -> dict[str, Any]:
    done = []
    for _ in range(rounds):
        server.empty()
        done.append(Side().produce(server, jobs, concurrent=1_000))
    figures = medians(done)
    return {
        "await enqueue/s, 1,000 at once": figures["enqueue_s"],
        "client µs": figures["producer_us"],
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One worker, jobs that do nothing.")
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--max-jobs", type=int, nargs="+", default=[25, 1_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--concurrent", action="store_true", help="measure `await enqueue` instead")
    parser.add_argument("--rss", action="store_true", help="measure growth over 500,000 jobs")
    parser.add_argument("--rss-jobs", type=int, default=500_000)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def measure(server: MeasuredServer, options: argparse.Namespace) -> list[dict[str, Any]]:
    if options.rss:
        return [rss_growth(server, options.rss_jobs, max_jobs) for max_jobs in options.max_jobs]
    if options.concurrent:
        return [concurrent_enqueue(server, options.jobs, options.rounds)]
    return throughput(server, options)


def main() -> None:
    options = arguments()
    with MeasuredServer(options.server) as server:
        rows = measure(server, options)
    names = versions("fastq-worker", "uvloop", "orjson", "hiredis")
    machine = f"{machine_line(server.version)}, {names}"
    columns = COLUMNS if "jobs_s" in rows[0] else None
    emit(
        options.json,
        {"machine": machine, "rows": rows},
        lambda: f"{table(rows, columns)}\n{machine}",
    )


if __name__ == "__main__":
    main()
