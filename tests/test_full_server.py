"""A server that is full, busy or forbids: nothing is lost, and all flows again."""

import asyncio
import contextlib
from typing import Any, cast

import pytest
import redis

from counted import Tally, count, enqueue, fail, kill_named, left_over, working
from fastq import Client, EnqueueError, JobFailed
from fastq.functions import call
from restrained import full
from servers import Server
from waiting import eventually

pytestmark = pytest.mark.faults

FEW = 12
RESULTS = "{fastq:default}:result:"
LOOP = "while true do redis.call('TIME') end"
STREAM = "{fastq:default}:stream"
ENTRY: dict[Any, Any] = {"f": "count", "d": "[]"}


def stored(server: Server) -> int:
    return sum(1 for _ in server.client().scan_iter(f"{RESULTS}*", count=1_000))


@pytest.mark.servers
async def test_a_full_server_takes_no_job_and_settles_all_with_their_results(
    server: Server, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(server.url()) as client:
        jobs = await enqueue(client, 500, 0.002)
        bad = await client.enqueue_many([call(fail) for _ in range(5)])
        async with working(server.url(), max_jobs=20):
            await eventually(lambda: len(tally) > 20)
            with full(server):
                with pytest.raises(EnqueueError, match=r"OOM.*maxmemory"):
                    await client.enqueue(count)
                with pytest.raises(EnqueueError, match=r"call 0: .*OOM.* 0 jobs were enqueued"):
                    await enqueue(client, 10)
                await tally.all_once(jobs)
                ends = await asyncio.gather(*(j.result(9) for j in bad), return_exceptions=True)
                assert {type(end) for end in ends} == {JobFailed}
                await eventually(lambda: left_over(server) == (0, 0))
                assert stored(server) == len(jobs) + len(bad)
            await tally.all_once(await enqueue(client, 100))
    assert len(caplog.records) <= FEW, caplog.text


@pytest.mark.servers
async def test_a_worker_starts_and_reconnects_on_a_full_server(
    server: Server, tally: Tally
) -> None:
    async with Client(server.url()) as client:
        async with working(server.url()):
            await tally.all_once(await enqueue(client, 1))
        jobs = await enqueue(client, 300, 0.01)
        with full(server):
            async with working(server.url(), max_jobs=10):
                for done in (50, 100, 150):
                    await eventually(lambda: len(tally) > done)  # noqa: B023
                    assert await eventually(lambda: kill_named(server, ":writer"))
                await tally.all_once(jobs)
                await eventually(lambda: left_over(server) == (0, 0))
        assert stored(server) == 301


@pytest.mark.servers
async def test_ends_refused_while_a_script_hogs_the_server_are_said_again(
    server: Server, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    control = server.client()
    control.config_set("lua-time-limit", 10)
    async with (
        Client(server.url(), connect_timeout=1) as client,
        working(server.url(), max_jobs=20),
    ):
        jobs = await enqueue(client, 1_000, 0.005)
        await eventually(lambda: len(tally) > 100)
        hog = asyncio.get_running_loop().run_in_executor(None, run_script, server)
        await eventually(lambda: "BUSY" in caplog.text)
        with pytest.raises(EnqueueError, match="BUSY"):
            await client.enqueue(count)
        control.script_kill()
        await hog
        await tally.all_once(jobs)
        await eventually(lambda: left_over(server) == (0, 0))
    control.config_set("lua-time-limit", 5_000)
    assert len(caplog.records) <= FEW, caplog.text


def run_script(server: Server) -> None:
    with contextlib.suppress(redis.ResponseError):
        server.client().eval(LOOP, 0)


async def test_reading_pauses_while_more_ends_than_slots_are_unanswered(
    valkey: Server, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    control = valkey.client()
    async with Client(valkey.url()) as client, working(valkey.url(), max_jobs=10) as worker:
        await tally.all_once(await enqueue(client, 1))
        cast(Any, control).execute_command(
            f"ACL SETUSER default resetkeys ~{STREAM} ~{{fastq:default}}:[bc]*"
        )
        try:
            # By hand: the client's own SADD of the queue's name is refused now, which is no matter.
            added = [cast(bytes, control.xadd(STREAM, ENTRY)).decode() for _ in range(100)]
            await eventually(lambda: worker._settler.unanswered > 10)
            await asyncio.sleep(1)
            # Ten unanswered are fine; ten more ended while that was looked at, and ten were read.
            paused = len(tally) - 1
            assert 11 <= paused <= 30
            await asyncio.sleep(1)
            assert len(tally) - 1 == paused == worker._settler.unanswered
        finally:
            cast(Any, control).execute_command("ACL SETUSER default allkeys")
        await tally.all_once([client.job(job_id) for job_id in added])
        await eventually(lambda: left_over(valkey) == (0, 0))
    assert len(caplog.records) <= FEW, caplog.text
