"""A whole worker in this process, on a real server: `pytest benches/test_worker.py`.

For a figure of one worker with all its cores to itself, see `throughput.py`.
"""

# mypy: allow-untyped-calls
# pytest-benchmark has no annotations on `pedantic`.

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from pytest_benchmark.fixture import BenchmarkFixture

import fastq
import fastq.worker
from burst import STREAM
from measured import MeasuredServer
from workload import Worker, noop

JOBS = 10_000
ROUNDS = 3


class AtOnce25(Worker):
    max_jobs = 25
    burst = True


class AtOnce1000(AtOnce25):
    max_jobs = 1_000


@pytest.fixture(scope="module")
def server() -> Iterator[MeasuredServer]:
    with MeasuredServer() as server:
        yield server


@pytest.fixture
def runner(server: MeasuredServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Runner]:
    server.empty()
    monkeypatch.setenv("FASTQ_REDIS_URL", server.url())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        yield runner


async def enqueue(server: MeasuredServer) -> int:
    async with fastq.Client(server.url()) as client:
        return await client.enqueue_many((fastq.call(noop) for _ in range(JOBS)), handles=False)


@pytest.mark.parametrize("settings", [AtOnce25, AtOnce1000])
def test_runs_10000_jobs(
    benchmark: BenchmarkFixture,
    server: MeasuredServer,
    runner: asyncio.Runner,
    settings: type[Worker],
) -> None:
    def setup() -> Any:
        assert runner.run(enqueue(server)) == JOBS

    def burst() -> None:
        runner.run(fastq.worker.Worker(settings).run())

    benchmark.pedantic(burst, setup=setup, rounds=ROUNDS, warmup_rounds=1)
    assert server.wire.call("XLEN", STREAM) == 0
    assert server.wire.call("DBSIZE") >= JOBS * (ROUNDS + 1)


def test_enqueues_10000_jobs(
    benchmark: BenchmarkFixture, server: MeasuredServer, runner: asyncio.Runner
) -> None:
    benchmark.pedantic(lambda: runner.run(enqueue(server)), rounds=ROUNDS, warmup_rounds=1)
    assert server.wire.call("XLEN", STREAM) == JOBS * (ROUNDS + 1)
