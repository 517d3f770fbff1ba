"""The workload this project was started for: 20,000 small jobs, 1 to 40 workers x 25 at once.

The workers are up and idle, then the jobs are enqueued in bulk; the time runs from the first
enqueue to the end of the last job. With `--deferred` all jobs are enqueued beforehand and due at
the same moment, and the time runs from that. arq gets fewer jobs, since it needs minutes for all of
them; the table says how many they were. `--arq-jobs 20000` is the like-for-like comparison.

    python benches/seed.py [--deferred] [--jobs N] [--arq-jobs N] [--workers 1 10 20 40]
                           [--rounds R] [--server NAME] [--json]
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
    left: tuple[tuple[str, ...], ...]  # the commands that tell how many jobs have not ended
    produce: Callable[[MeasuredServer, int, float], dict[str, Any]]


def fastq_system(jobs: int) -> System:
    command = Side().worker("--max-jobs", str(AT_ONCE))
    left = ("XLEN", STREAM), ("ZCARD", STREAM.replace(":stream", ":deferred"))
    return System("fastq", jobs, command, "xreadgroup", left, produce_fastq)


def produce_fastq(server: MeasuredServer, jobs: int, due_in_s: float) -> dict[str, Any]:
    return Side().produce(server, jobs, due_in_s=due_in_s)


def arq_system(jobs: int) -> System:
    command = [Side().command("arq"), "benches.arq_workload.Worker"]
    return System("arq", jobs, command, "zrangebyscore", (("ZCARD", "arq:queue"),), produce_arq)


def produce_arq(server: MeasuredServer, jobs: int, due_in_s: float) -> dict[str, Any]:
    words = [server.url(), str(jobs), str(due_in_s)]
    return run_json([sys.executable, str(HERE / "arq_workload.py"), *words])


def measure(
    server: MeasuredServer, system: System, workers: int, rounds: int, due_in_s: float
) -> dict[str, Any]:
    """Medians of rounds that follow each other on the same workers."""
    server.empty()
    with Workers(system.worker, server, workers) as fleet:
        fleet.wait_until_reading(system.reads_by)
        done = medians([one_round(server, system, fleet, due_in_s) for _ in range(rounds)])
    return {"system": system.name, "workers": f"{workers} x {AT_ONCE}", "jobs": system.jobs} | done


def one_round(
    server: MeasuredServer, system: System, fleet: Workers, due_in_s: float
) -> dict[str, Any]:
    before = server.cpu_s()
    produced = system.produce(server, system.jobs, due_in_s)
    if due_in_s and time.monotonic() > produced["due_at"]:
        raise SystemExit(f"{system.name}: enqueueing took longer than {due_in_s} s: --due-in more")
    since = produced["due_at" if due_in_s else "started_at"]
    seconds = wait_until_ended(server, system, fleet) - since
    spent = server.cpu_s() - before
    return {
        "seconds": seconds,
        "jobs/s": system.jobs / seconds,
        "Redis µs/job": spent / system.jobs * 1e6,
    }


def wait_until_ended(server: MeasuredServer, system: System, fleet: Workers) -> float:
    deadline = time.monotonic() + STUCK_S
    while sum(server.wire.call(*command) for command in system.left):
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
    parser.add_argument("--deferred", action="store_true", help="all jobs due at one moment")
    parser.add_argument("--due-in", type=float, default=4, help="s after the first is enqueued")
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
                due_in_s = options.due_in if options.deferred else 0
                rows.append(measure(server, system, workers, options.rounds, due_in_s))
    machine = f"{machine_line(server.version)}, {versions('fastq-worker', 'arq', 'uvloop')}"
    emit(options.json, {"machine": machine, "rows": rows}, lambda: f"{table(rows)}\n{machine}")


if __name__ == "__main__":
    main()
