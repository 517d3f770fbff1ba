"""One measurement of one worker: fill the queue, run a burst, watch it from outside.

The stream's length counts the jobs that have not ended, so sampling it needs nothing of the worker.
What is measured lies between 5 and 95 % of the jobs: neither start-up nor the end is in it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from measured import MeasuredServer, cpu_seconds
from processes import Side, Workers

STREAM = "{fastq:default}:stream"
GROUP = "fastq"
PERIOD_S = 0.02
STUCK_S = 60


@dataclass(frozen=True)
class Sample:
    at_s: float
    left: int
    server_s: float
    worker_s: float
    rss: int


def measure_burst(server: MeasuredServer, side: Side, jobs: int, max_jobs: int) -> dict[str, Any]:
    """Figures of one round. Empties the server first."""
    server.empty()
    before = server.cpu_s()
    produced = side.produce(server, jobs)
    enqueue_us = (server.cpu_s() - before) / jobs * 1e6
    figures = figures_of(watch_burst(server, side, jobs, max_jobs), jobs)
    return {
        "max_jobs": max_jobs,
        "jobs_s": figures["jobs_s"],
        "enqueue_s": produced["enqueue_s"],
        "redis_us": figures["redis_us"] + enqueue_us,
        "redis_run_us": figures["redis_us"],
        "worker_us": figures["worker_us"],
        "rss_mb": figures["rss_mb"],
    }


def watch_burst(server: MeasuredServer, side: Side, jobs: int, max_jobs: int) -> list[Sample]:
    command = side.worker("--burst", "--max-jobs", str(max_jobs))
    with Workers(command, server) as workers:
        samples = list(_samples(server, workers))
        workers.wait_for_exit()
    _check_all_ended(server, jobs)
    return samples


def figures_of(samples: Sequence[Sample], jobs: int) -> dict[str, float]:
    inside = [s for s in samples if 0.05 * jobs <= s.left <= 0.95 * jobs]
    if len(inside) < 5:
        raise SystemExit(f"{jobs:,} jobs are too few to measure: {len(inside)} samples")
    first, last = inside[0], inside[-1]
    done, seconds = first.left - last.left, last.at_s - first.at_s
    return {
        "jobs_s": done / seconds,
        "redis_us": (last.server_s - first.server_s) / done * 1e6,
        "worker_us": (last.worker_s - first.worker_s) / done * 1e6,
        "rss_mb": max(s.rss for s in samples) / 1e6,
    }


def _samples(server: MeasuredServer, workers: Workers) -> list[Sample]:
    process = psutil.Process(workers.processes[0].pid)
    samples: list[Sample] = []
    progress_s = time.monotonic()
    while not samples or samples[-1].left:
        time.sleep(PERIOD_S)
        workers.check_alive()
        samples.append(_sample(server, process))
        if len(samples) < 2 or samples[-1].left != samples[-2].left:
            progress_s = time.monotonic()
        if time.monotonic() > progress_s + STUCK_S:
            raise SystemExit(f"no job ended for {STUCK_S} s: {workers.output()}")
    return samples


def _sample(server: MeasuredServer, process: psutil.Process) -> Sample:
    left, info = server.wire.calls([("XLEN", STREAM), ("INFO", "cpu")])
    at_s = time.monotonic()
    try:
        with process.oneshot():
            cpu, rss = process.cpu_times(), process.memory_info().rss
    except psutil.Error:
        # Gone between its last job and this look: the stream is empty, and nothing is read off it.
        return Sample(at_s, 0, cpu_seconds(info), 0, 0)
    return Sample(at_s, left, cpu_seconds(info), cpu.user + cpu.system, rss)


def _check_all_ended(server: MeasuredServer, jobs: int) -> None:
    """A fast worker that loses jobs or results is not fast."""
    length, pending, keys = server.wire.calls(
        [("XLEN", STREAM), ("XPENDING", STREAM, GROUP), ("DBSIZE",)]
    )
    if length or pending[0] or keys < jobs:
        raise SystemExit(f"{length} jobs left, {pending[0]} pending, {keys} keys after {jobs} jobs")
