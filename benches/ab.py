"""Two commits of this repository on one machine, in one run: is HEAD slower than BASE?

Each commit becomes a wheel in a virtual environment of its own; the workload is this folder's for
both. The rounds take turns, each gives one ratio HEAD / BASE, and the median of them is the answer,
with the spread of the rounds beside it. Exits 1 if a median falls below the limit. `WORKTREE`
stands for the uncommitted tree; comparing a commit with itself shows the noise of the machine.

    python benches/ab.py BASE HEAD [--jobs N] [--rounds R] [--max-jobs 25 1000] [--limit 0.95]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from builds import Build
from burst import measure_burst
from floor import measure_once
from measured import DEFAULT, NAMES, MeasuredServer
from processes import Side
from report import bootstrap, emit, machine_line, table

Round = dict[str, Any]
FLOOR_JOBS = 50_000
COLUMNS = {
    "round": "round",
    "max_jobs": "max_jobs",
    "base": "BASE jobs/s",
    "head": "HEAD jobs/s",
    "ratio": "HEAD/BASE",
    "fraction": "HEAD of floor",
    "cpu_ratio": "worker CPU",
    "redis_ratio": "Redis CPU",
}


@dataclass(frozen=True)
class Pair:
    """The two sides, built."""

    base: Side
    head: Side

    def one_round(self, server: MeasuredServer, number: int, jobs: int, max_jobs: int) -> Round:
        # Whoever goes first finds another machine than who goes second, so they swap.
        order = ["base", "head"] if number % 2 else ["head", "base"]
        floor = measure_once(server, max_jobs, min(jobs, FLOOR_JOBS))
        done = {name: measure_burst(server, getattr(self, name), jobs, max_jobs) for name in order}
        base, head = done["base"], done["head"]
        return {
            "round": number,
            "max_jobs": max_jobs,
            "base": base["jobs_s"],
            "head": head["jobs_s"],
            "ratio": head["jobs_s"] / base["jobs_s"],
            "fraction": head["jobs_s"] / floor.jobs_s,
            "cpu_ratio": head["worker_us"] / base["worker_us"],
            "redis_ratio": head["redis_us"] / base["redis_us"],
        }


def verdict(rounds: Sequence[Round], max_jobs: int) -> dict[str, Any]:
    """The median ratio of the rounds at one `max_jobs`, and how far it can be trusted."""
    mine = [done for done in rounds if done["max_jobs"] == max_jobs]
    ratios = [done["ratio"] for done in mine]
    low, high = bootstrap(ratios)
    return {
        "max_jobs": max_jobs,
        "ratio": median(ratios),
        "min": min(ratios),
        "max": max(ratios),
        "90 % from": low,
        "to": high,
        "HEAD of floor": median(done["fraction"] for done in mine),
        "worker CPU": median(done["cpu_ratio"] for done in mine),
        "Redis CPU": median(done["redis_ratio"] for done in mine),
    }


def compare(pair: Pair, server: MeasuredServer, options: argparse.Namespace) -> list[Round]:
    return [
        pair.one_round(server, number, options.jobs, max_jobs)
        for number in range(1, options.rounds + 1)
        for max_jobs in options.max_jobs
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two commits, interleaved; ratio HEAD/BASE.")
    parser.add_argument("base", metavar="BASE", help="a commit, or WORKTREE")
    parser.add_argument("head", metavar="HEAD", help="a commit, or WORKTREE")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--max-jobs", type=int, nargs="+", default=[25, 1_000])
    parser.add_argument("--limit", type=float, default=0.95)
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def run(options: argparse.Namespace) -> tuple[list[Round], str]:
    with tempfile.TemporaryDirectory(prefix="fastq-ab-") as folder:
        base = Build(options.base, Path(folder, "base")).side()
        head = Build(options.head, Path(folder, "head")).side()
        with MeasuredServer(options.server) as server:
            return compare(Pair(base, head), server, options), machine_line(server.version)


def main() -> int:
    options = arguments()
    rounds, machine = run(options)
    verdicts = [verdict(rounds, max_jobs) for max_jobs in options.max_jobs]
    slower = [v for v in verdicts if v["ratio"] < options.limit]
    end = f"HEAD is slower than {options.limit} of BASE" if slower else "HEAD holds"
    tables = f"{table(rounds, COLUMNS)}\n\n{table(verdicts)}"
    data = {"machine": machine, "rounds": rounds, "verdicts": verdicts, "slower": bool(slower)}
    emit(options.json, data, lambda: f"{tables}\n{machine}\n{end}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
