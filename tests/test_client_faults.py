"""Producers and waiters: one typed error in bounded time, and nobody gets another's reply."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import psutil
import pytest
import pytest_asyncio

from counted import Tally, count, enqueue, kill_named, left_over, working
from fastq import Client, EnqueueError, EnqueueUncertain, Job, ResultNotFound
from fastq.connection import Backoff
from fastq.functions import call
from proxy import Proxy
from servers import DEFAULT, Server, free_port
from waiting import eventually

pytestmark = pytest.mark.faults

STREAM = "{fastq:default}:stream"
TIMEOUT_S = 1.0
PATIENCE_S = 1.5 * TIMEOUT_S
TRIES = 1_000


@pytest_asyncio.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey.port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    """A client that comes through the proxy, and has done so already."""
    async with Client(proxy.url(), connect_timeout=TIMEOUT_S) as client:
        await client.enqueue(count)
        yield client


async def test_a_server_that_dies_is_told_within_the_connect_timeout(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    async with Client(server.url(), connect_timeout=TIMEOUT_S) as client:
        await client.enqueue(count)
        server.kill()
        await eventually(lambda: client._link.connection is None)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EnqueueError, match="nothing was enqueued"):
                await client.enqueue(count)
        server.start()
        assert await client.enqueue(count)


async def test_a_server_that_freezes_is_told_within_the_connect_timeout(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    async with Client(server.url(), connect_timeout=TIMEOUT_S) as client:
        await client.enqueue(count)
        server.pause()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EnqueueUncertain, match="may have been enqueued"):
                await client.enqueue(count)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(EnqueueError):
                await client.enqueue(count)
        server.resume()
        assert await client.enqueue(count)


async def test_a_job_whose_reply_is_lost_is_uncertain_and_is_not_sent_again(
    valkey: Server, proxy: Proxy, client: Client
) -> None:
    for number in range(1, 11):
        tunnel = await proxy.find("fastq:client")
        tunnel.drop_replies()
        sent = asyncio.ensure_future(client.enqueue(count))
        await eventually(lambda: left_over(valkey)[0] == 1 + 2 * number - 1)  # noqa: B023
        tunnel.cut()
        with pytest.raises(EnqueueUncertain, match="may run it twice"):
            await sent
        await client.enqueue(count)
    assert left_over(valkey)[0] == 21


async def test_jobs_whose_replies_are_lost_are_counted_as_far_as_they_are_sure(
    valkey: Server, proxy: Proxy, client: Client
) -> None:
    chance = random.Random(19)
    sure = 1
    for _ in range(10):
        tunnel = await proxy.find("fastq:client")
        # A reply has some 23 bytes.
        tunnel.cut_after(chance.randint(1, 40_000))
        with pytest.raises(EnqueueUncertain, match="replies were lost") as caught:
            await enqueue(client, 2_000)
        assert 0 <= caught.value.enqueued <= 2_000
        sure += caught.value.enqueued
        await client.enqueue(count)
        sure += 1
    assert sure <= left_over(valkey)[0] <= 1 + 10 * 2_001


async def test_a_connection_that_ended_while_idle_is_made_anew(
    valkey: Server, client: Client
) -> None:
    for _ in range(10):
        assert kill_named(valkey, "fastq:client") == 1
        await eventually(lambda: client._link.connection is None)
        assert await client.enqueue(count)


async def same_id(client: Client, valkey: Server, number: int) -> None:
    """A job is stored under the id that its own enqueue was told, and its status is its own."""
    value = number + 0.5
    job = await client.enqueue(count, value)
    found = cast(list[Any], valkey.client().xrange(STREAM, job.id, job.id))
    assert found[0][1][b"d"] == f"[{value}]".encode()
    jobs = await client.enqueue_many([call(count, value + n) for n in range(1, 4)])
    assert [job.id for job in jobs] == sorted({job.id for job in jobs}, key=order)
    assert await job.status() == "queued"
    assert await client.job("1-1").status() == "not_found"


def order(job_id: str) -> list[int]:
    return [int(part) for part in job_id.split("-")]


CALLS: dict[str, Callable[[Client, Job[str]], Awaitable[object]]] = {
    "enqueue": lambda client, job: client.enqueue(count, 9.0),
    "enqueue_many": lambda client, job: client.enqueue_many([call(count, 9.0)] * 1_500),
    "status": lambda client, job: job.status(),
    "result": lambda client, job: job.result(),
    "close": lambda client, job: client.close(),
}


@pytest.mark.parametrize("connected", [False, True], ids=["connecting", "connected"])
@pytest.mark.parametrize("what", CALLS)
async def test_whoever_is_cancelled_leaves_the_others_their_own_replies(
    valkey: Server, proxy: Proxy, tally: Tally, what: str, connected: bool
) -> None:
    """Cancelled in each loop turn, and in each ms of a connection that is slow."""
    async with Client(valkey.url()) as producer:
        stored = await producer.enqueue(count)
    for number in range(60):
        proxy.delay_s = 0.002 * (number % 2)
        async with Client(proxy.url()) as client:
            job = client.job(stored.id)
            if connected:
                await job.status()
            task = asyncio.ensure_future(CALLS[what](client, job))
            for _ in range(number // 2):
                await asyncio.sleep(0.0005 * (number % 2))
            task.cancel()
            if what != "close":
                await same_id(client, valkey, number)
            await asyncio.wait([task])


async def test_a_thousand_failed_reconnects_leave_nothing_behind(
    tally: Tally, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []

    def next_s(self: Backoff) -> float:
        waits.append(self.failures)
        self.failures += 1
        return 0.0005

    port = free_port()
    async with Client(f"redis://127.0.0.1:{port}/0", connect_timeout=TIMEOUT_S) as client:
        with Server(DEFAULT, port=port) as server, monkeypatch.context() as patched:
            async with working(server.url()):
                await tally.all_once(await enqueue(client, 5))
                server.kill()
                patched.setattr(Backoff, "next_s", next_s)
                await eventually(lambda: len(waits) > 100)
                tasks, files = household()
                await eventually(lambda: len(waits) > TRIES, 30)
                # The one more is of the try that is just being made.
                assert household()[0] == tasks
                assert household()[1] <= files + 1
                # A client that cannot get in goes on in the same way.
                with pytest.raises(EnqueueError):
                    await client.enqueue(count)
                server.start()
                patched.undo()
                await tally.all_once(await enqueue(client, 5))
    assert len(caplog.records) < 10, caplog.text


def household() -> tuple[int, int]:
    return len(asyncio.all_tasks()), psutil.Process().num_fds()


def test_delays_grow_to_their_maximum_and_differ() -> None:
    backoffs = [Backoff(maximum_s=2.5) for _ in range(50)]
    first = [backoff.next_s() for backoff in backoffs]
    assert 0.025 <= min(first) < max(first) <= 0.05
    for backoff in backoffs:
        last = [backoff.next_s() for _ in range(TRIES)][-1]
        assert 1.25 <= last <= 2.5
        backoff.reset()
        assert backoff.next_s() <= 0.05


# Waiting for results


async def test_waiters_survive_a_restart_of_the_server(
    make_server: Callable[..., Server], tally: Tally
) -> None:
    server = make_server(DEFAULT, "--appendonly", "yes", "--appendfsync", "always")
    async with Client(server.url()) as client:
        jobs = await enqueue(client, 50, 0.1)
        waiting = asyncio.gather(*(job.result(30) for job in jobs))
        await eventually(lambda: len(client._results._waits) == 50)
        server.kill()
        server.start()
        async with working(server.url()):
            assert await waiting == [job.id for job in jobs]


async def test_waiters_hear_of_results_after_flushall_and_after_a_kill(valkey: Server) -> None:
    control = valkey.client()
    async with Client(valkey.url()) as client:
        for harm in ("FLUSHALL", "kill"):
            job = await client.enqueue(count)
            waiting = asyncio.ensure_future(job.result(5))
            await eventually(lambda: client._results._link.connection)
            if harm == "FLUSHALL":
                control.flushall()
            else:
                assert await eventually(lambda: kill_named(valkey, "fastq:results"))
            # By a push, or at the re-connection: long before the next look at the job's status.
            control.set(f"{{fastq:default}}:result:{job.id}", b'complete - 1 2 1\n"told"')
            async with asyncio.timeout(0.5):
                assert await waiting == "told"


async def test_waiters_notice_that_pushes_no_longer_come(
    valkey: Server, proxy: Proxy, client: Client, tally: Tally
) -> None:
    job = await client.enqueue(count)
    waiting = asyncio.ensure_future(job.result(10))
    (await proxy.find("fastq:results")).freeze()
    async with working(valkey.url()):
        assert await waiting == job.id


async def test_a_result_that_will_never_come_is_said_so(valkey: Server, client: Client) -> None:
    job = await client.enqueue(count)
    waiting = asyncio.ensure_future(job.result(10))
    await eventually(lambda: client._results._link.connection)
    valkey.client().flushall()
    with pytest.raises(ResultNotFound):
        await waiting
