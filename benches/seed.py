"""The workload this project was started for: 20,000 small jobs, 1 to 40 workers x 25 at once.

The workers are up and idle, then the jobs are enqueued in bulk; the time runs from the first
enqueue to the end of the last job. arq gets fewer jobs, since it needs minutes for all of them; the
table says how many they were. `--arq-jobs 20000` is the like-for-like comparison.

    python benches/seed.py [--jobs N] [--arq-jobs N] [--workers 1 10 20 40] [--rounds R]
                           [--server NAME] [--json]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from burst import STREAM
from measured import DEFAULT, NAMES, MeasuredServer
from processes import HERE, Side, Workers, run_json
from report import emit, machine_line, medians, table, versions

AT_ONCE = 25
STUCK_S = 120


@dataclass(frozen=True)
class System:
    """What one job queue needs to be measured."""

    name: str
    jobs: int
    worker: list[str]
    reads_by: str
    left: tuple[str, ...]  # the command that tells how many jobs have not ended
    produce: Callable[[MeasuredServer, int], dict[str, Any]]


def fastq_system(jobs: int) -> System:
    command = Side().worker("--max-jobs", str(AT_ONCE))
    return System("fastq", jobs, command, "xreadgroup", ("XLEN", STREAM), Side().produce)


def arq_system(jobs: int) -> System:
    command = [Side().command("arq"), "benches.arq_workload.Worker"]
    return System("arq", jobs, command, "zrangebyscore", ("ZCARD", "arq:queue"), produce_arq)


def produce_arq(server: MeasuredServer, jobs: int) -> dict[str, Any]:
    return run_json([sys.executable, str(HERE / "arq_workload.py"), server.url(), str(jobs)])


def measure(server: MeasuredServer, system: System, workers: int, rounds: int) -> dict[str, Any]:
    """Medians of rounds that follow each other on the same workers."""
    server.empty()
    with Workers(system.worker, server, workers) as fleet:
        fleet.wait_until_reading(system.reads_by)
        done = medians([one_round(server, system, fleet) for _ in range(rounds)])
    return {"system": system.name, "workers": f"{workers} x {AT_ONCE}", "jobs": system.jobs} | done


def one_round(server: MeasuredServer, system: System, fleet: Workers) -> dict[str, Any]:
    before = server.cpu_s()
    produced = system.produce(server, system.jobs)
    seconds = wait_until_ended(server, system, fleet) - produced["started_at"]
    spent = server.cpu_s() - before
    return {
        "seconds": seconds,
        "jobs/s": system.jobs / seconds,
        "Redis µs/job": spent / system.jobs * 1e6,
    }


def wait_until_ended(server: MeasuredServer, system: System, fleet: Workers) -> float:
    deadline = time.monotonic() + STUCK_S
    while server.wire.call(*system.left):
        fleet.check_alive()
        if time.monotonic() > deadline:
            raise SystemExit(f"{system.name}: jobs left after {STUCK_S} s: {fleet.output()}")
        time.sleep(0.005)
    return time.monotonic()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The seed workload, fastq beside arq.")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--arq-jobs", type=int, default=2_000, help="0 leaves arq out")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 10, 20, 40])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    systems = [fastq_system(options.jobs), arq_system(options.arq_jobs)]
    rows = []
    with MeasuredServer(options.server) as server:
        for workers in options.workers:
            for system in filter(lambda system: system.jobs, systems):
                print(f"{system.name}, {workers} workers", file=sys.stderr, flush=True)
                rows.append(measure(server, system, workers, options.rounds))
    machine = f"{machine_line(server.version)}, {versions('fastq-worker', 'arq', 'uvloop')}"
    emit(options.json, {"machine": machine, "rows": rows}, lambda: f"{table(rows)}\n{machine}")


if __name__ == "__main__":
    main()
