"""Whatever the server does, the worker lives, and no job is lost or run twice."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from counted import Tally, count, enqueue, fail, kill_named, left_over, working
from fastq import Client, EnqueueError, EnqueueUncertain, JobFailed
from fastq.functions import call
from servers import Server, free_port
from waiting import eventually

pytestmark = pytest.mark.faults

STREAM = "{fastq:default}:stream"
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
WORKER = "from fastq.cli import main; main()"
AWAY_S = 3.0
SOON_S = 2.0
# A break is worth a line from each part that notices; a storm has one a job or a try.
FEW = 12


@contextlib.asynccontextmanager
async def worker_process(url: str, *args: str) -> AsyncIterator[subprocess.Popen[str]]:
    """`fastq-worker`, as users run it; it must live to the end of the block."""
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, "counted:Counted", "--redis", url, *args],
        cwd=here,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(here)},
    )
    try:
        yield process
        assert process.poll() is None, "the worker died"
    finally:
        process.terminate()
        _, said = await asyncio.to_thread(process.communicate, timeout=30)
        print(said)


async def test_a_server_killed_under_load_for_3_s_costs_no_job(
    make_server: Callable[..., Server], tally: Tally
) -> None:
    server = make_server("valkey-9.1", *DURABLE)
    async with (
        Client(server.url()) as client,
        worker_process(server.url(), "--max-jobs", "100"),
    ):
        jobs = await enqueue(client, 5_000, 0.02)
        waiting = asyncio.gather(*(job.result(timeout=60) for job in jobs))
        await eventually(lambda: len(tally) > 1_500)
        server.kill()
        assert len(tally) < 4_900
        await asyncio.sleep(AWAY_S)
        server.start()
        results = await waiting
    assert results == [job.id for job in jobs]
    assert len(tally) == len(jobs)
    # At most the jobs that were under way. As it is none: they go on in the worker, what it has to
    # say of them is kept and said again, and what was delivered in a lost reply has not run.
    assert tally.doubled() == 0
    assert left_over(server) == (0, 0)


async def test_five_kills_while_jobs_come_and_go_cost_no_job(
    make_server: Callable[..., Server], tally: Tally
) -> None:
    server = make_server("valkey-9.1", *DURABLE)
    sent = asyncio.Event()
    async with Client(server.url()) as client, working(server.url(), max_jobs=50):
        jobs = await enqueue(client, 50)
        uncertain = 0

        async def produce() -> None:
            nonlocal uncertain
            while not sent.is_set():
                try:
                    jobs.append(await client.enqueue(count, 0.01))
                except EnqueueUncertain:
                    uncertain += 1
                except EnqueueError:
                    pass

        producers = [asyncio.ensure_future(produce()) for _ in range(20)]
        for _ in range(5):
            before = len(tally)
            await eventually(lambda: len(tally) > before + 200)  # noqa: B023
            server.kill()
            server.start()
        sent.set()
        await asyncio.gather(*producers)
        await tally.all_once(jobs)
        await eventually(lambda: left_over(server) == (0, 0))
    assert len(jobs) <= len(tally) <= len(jobs) + uncertain
    assert tally.doubled() == 0


async def test_a_job_that_comes_soon_after_the_server_s_return_runs_soon(
    make_server: Callable[..., Server], tally: Tally
) -> None:
    server = make_server("valkey-9.1", *DURABLE)
    async with Client(server.url()) as client, working(server.url()):
        await tally.all_once(await enqueue(client, 1))
        server.kill()
        await asyncio.sleep(AWAY_S)
        server.start()
        await asyncio.sleep(0.7)
        job = await client.enqueue(count)
        assert await job.result(timeout=SOON_S) == job.id


@pytest.mark.servers
@pytest.mark.parametrize("busy", [False, True], ids=["blocked", "busy"])
@pytest.mark.parametrize("harm", ["FLUSHALL", f"DEL {STREAM}", f"XGROUP DESTROY {STREAM} fastq"])
async def test_jobs_run_soon_after_the_stream_or_its_group_went(
    server: Server, tally: Tally, caplog: pytest.LogCaptureFixture, harm: str, busy: bool
) -> None:
    async with Client(server.url()) as client, working(server.url(), max_jobs=50):
        await tally.all_once(await enqueue(client, 1))
        await blocked(server)
        if busy:
            await enqueue(client, 2_000, 0.01)
            await eventually(lambda: len(tally) > 300)
        caplog.clear()
        cast(Any, server.client()).execute_command(*harm.split())
        job = await client.enqueue(count)
        if busy and harm.startswith("XGROUP"):
            # What was queued before it is still there, and comes first.
            await eventually(lambda: left_over(server) == (0, 0), 30)
        else:
            assert await job.result(timeout=SOON_S) == job.id
    assert tally.doubled() == 0
    assert len(caplog.records) <= FEW, caplog.text


async def test_jobs_that_run_are_not_taken_for_new_ones_by_a_new_group(
    valkey: Server, tally: Tally
) -> None:
    async with Client(valkey.url()) as client, working(valkey.url(), max_jobs=50):
        jobs = await enqueue(client, 20, 1.0)
        await eventually(lambda: len(tally) == 20)
        await blocked(valkey)
        valkey.client().xgroup_destroy(STREAM, "fastq")
        jobs += await enqueue(client, 20)
        await tally.all_once(jobs)
        await eventually(lambda: left_over(valkey) == (0, 0))


async def test_scripts_that_the_server_forgot_are_sent_again(valkey: Server, tally: Tally) -> None:
    async with Client(valkey.url()) as client, working(valkey.url(), max_jobs=20):
        jobs = await client.enqueue_many([call(fail) for _ in range(1_000)])
        for done in (200, 400, 600):
            await eventually(lambda: len(tally) > done)  # noqa: B023
            valkey.client().script_flush()
        outcomes = await asyncio.gather(*(j.result(30) for j in jobs), return_exceptions=True)
        assert all(isinstance(outcome, JobFailed) for outcome in outcomes)
        await eventually(lambda: left_over(valkey) == (0, 0))
    assert (len(tally), tally.doubled()) == (1_000, 0)
    assert valkey.client().xlen("{fastq:default}:dead") == 1_000


@pytest.mark.servers
@pytest.mark.parametrize("busy", [False, True], ids=["blocked", "busy"])
async def test_a_server_that_is_a_replica_for_a_while_costs_no_job(
    server: Server, tally: Tally, caplog: pytest.LogCaptureFixture, busy: bool
) -> None:
    async with Client(server.url()) as client, working(server.url(), max_jobs=50):
        await tally.all_once(await enqueue(client, 1))
        await blocked(server)
        jobs = await enqueue(client, 1_000 * busy, 0.01)
        await eventually(lambda: len(tally) > 300 * busy)
        server.client().replicaof("127.0.0.1", str(free_port()))
        await eventually(lambda: "READONLY" in caplog.text or "UNBLOCKED" in caplog.text)
        server.client().replicaof("NO", "ONE")
        jobs.append(await client.enqueue(count))
        await tally.all_once(jobs)
        await eventually(lambda: left_over(server) == (0, 0))
    assert len(caplog.records) <= FEW, caplog.text


@pytest.mark.servers
@pytest.mark.parametrize("which", [":reader", ":writer"])
async def test_connections_killed_in_mid_flow_cost_nothing(
    server: Server, tally: Tally, which: str
) -> None:
    async with Client(server.url()) as client, working(server.url(), max_jobs=50):
        jobs = await enqueue(client, 3_000, 0.005)
        for _ in range(20):
            before = len(tally)
            assert await eventually(lambda: kill_named(server, which))
            await eventually(lambda: len(tally) > min(before + 50, 2_999), SOON_S)  # noqa: B023
        await tally.all_once(jobs)
        await eventually(lambda: left_over(server) == (0, 0))


@pytest.mark.servers
async def test_a_key_of_another_type_is_named_once_and_survived(
    server: Server, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(server.url()) as client, working(server.url()):
        await tally.all_once(await enqueue(client, 1))
        await blocked(server)
        server.client().set(STREAM, "not a stream")
        with pytest.raises(EnqueueError, match="WRONGTYPE"):
            await client.enqueue(count)
        await eventually(lambda: f"{STREAM} must be a stream" in caplog.text)
        await asyncio.sleep(1.5)
        assert caplog.text.count("must be a stream") == 1
        server.client().delete(STREAM)
        job = await client.enqueue(count)
        assert await job.result(timeout=5) == job.id
    assert len(caplog.records) <= FEW, caplog.text


async def blocked(server: Server) -> None:
    """Returns once the reader waits at the server."""
    await eventually(lambda: cast(Any, server.client().info("clients"))["blocked_clients"])
