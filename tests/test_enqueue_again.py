"""Jobs with a record are enqueued once, however often it is said: replies get lost, servers go."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import pytest
import pytest_asyncio

import fastq
from counted import Tally, count, fail, working
from fastq import Client, EnqueueUncertain, Job
from proxy import Proxy, Tunnel
from retrying import AN_HOUR_S, Sight
from servers import Server
from waiting import eventually
from workers import DEADLINE_S

pytestmark = pytest.mark.faults

KINDS: dict[str, dict[str, Any]] = {
    "named": {"job_id": "mine"},
    "deferred": {"defer_by": 0.01},
    "named and deferred": {"job_id": "mine", "defer_by": 0.01},
    "expiring": {"expires": 600},
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)


@pytest_asyncio.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    """A client that comes through the proxy, and has brought its script along already."""
    async with Client(proxy.url(), connect_timeout=5) as client:
        await client.options(job_id="first").enqueue(count)
        yield client


async def lose_reply(proxy: Proxy, enqueueing: Any, meanwhile: Callable[[], Any]) -> Any:
    """Sends it; its reply is lost. Returns after `meanwhile`, with the connection cut."""
    tunnel = await proxy.find("fastq:client")
    tunnel.drop_replies()
    task = asyncio.ensure_future(enqueueing)
    await eventually(meanwhile, DEADLINE_S)
    assert not task.done()
    tunnel.cut()
    return task


# The job ran before it is said again


@pytest.mark.servers
@EVERY_KIND
@pytest.mark.parametrize("keep_result", [600, 30, 0, None])
async def test_a_job_that_ran_while_its_reply_was_lost_ran_once(
    server: Server,
    proxy: Proxy,
    client: Client,
    tally: Tally,
    kind: str,
    keep_result: int | None,
) -> None:
    queue = Sight(server)
    async with working(server.url()):
        await first_ran(queue, tally)
        producer = client.options(keep_result=keep_result, **KINDS[kind])
        sent = await lose_reply(proxy, producer.enqueue(count), lambda: ended(queue, tally, 2))
        job = await sent
        assert not job.existing
        assert tally.runs() == {"first": 1, job.id: 1}
        assert queue.is_settled()
        assert await job.status() == ("not_found" if keep_result == 0 else "complete")
        # Its id is not taken by the memory of it.
        assert not (await client.options(job_id=job.id).enqueue(count)).existing
        await eventually(lambda: tally.runs()[job.id] == 2)


async def first_ran(queue: Sight, tally: Tally) -> None:
    await eventually(lambda: ended(queue, tally, 1), DEADLINE_S)


def ended(queue: Sight, tally: Tally, number: int) -> bool:
    return len(tally) == number and queue.is_settled()


@pytest.mark.servers
@EVERY_KIND
async def test_a_server_that_forgets_the_script_meanwhile_remembers_the_job(
    server: Server, proxy: Proxy, client: Client, tally: Tally, kind: str
) -> None:
    queue = Sight(server)
    async with working(server.url()):
        await first_ran(queue, tally)
        enqueueing = client.options(keep_result=0, **KINDS[kind]).enqueue(count)
        sent = await lose_reply(proxy, enqueueing, lambda: ended(queue, tally, 2))
        queue.redis.script_flush()
        job = await sent
        assert not job.existing
        assert queue.is_settled()
    assert tally.runs() == {"first": 1, job.id: 1}


@pytest.mark.servers
@EVERY_KIND
async def test_a_job_that_failed_while_its_reply_was_lost_ran_once(
    server: Server, proxy: Proxy, client: Client, tally: Tally, kind: str
) -> None:
    queue = Sight(server)
    async with working(server.url()):
        await first_ran(queue, tally)
        enqueueing = client.options(**KINDS[kind]).enqueue(fail)
        job = await (await lose_reply(proxy, enqueueing, lambda: queue.dead() != []))
        assert (job.existing, await job.status()) == (False, "failed")
        assert queue.is_settled()
    assert tally.runs() == {"first": 1, job.id: 1}
    assert len(queue.dead()) == 1


@pytest.mark.parametrize("job_id", [None, "mine"])
async def test_a_job_that_expired_while_its_reply_was_lost_does_not_come_back(
    server: Server, proxy: Proxy, client: Client, tally: Tally, job_id: str | None
) -> None:
    queue = Sight(server)

    async def expired() -> bool:
        await eventually(lambda: has_expired(queue))
        async with working(server.url()):
            await first_ran(queue, tally)
            await eventually(lambda: len(queue.dead()) == 1)
        return True

    enqueueing = client.options(job_id=job_id, expires=0.001).enqueue(count)
    job = await (await lose_reply(proxy, enqueueing, expired))
    assert (job.existing, await job.status()) == (False, "expired")
    assert (len(queue.dead()), queue.is_settled()) == (1, True)
    assert tally.runs() == {"first": 1}


def has_expired(queue: Sight) -> bool:
    """The last entry, also by the clock of a worker that learns the time late."""
    at_ms = int(queue.entries()[-1].get("x", b"0"))
    return 0 < at_ms < queue.now_ms() - 1_000


# It still waits, or runs, when it is said again


@pytest.mark.servers
@EVERY_KIND
async def test_a_job_that_is_there_is_not_there_twice(
    server: Server, proxy: Proxy, client: Client, tally: Tally, kind: str
) -> None:
    queue, options = Sight(server), dict(KINDS[kind])
    if "defer_by" in options:
        options["defer_by"] = AN_HOUR_S
    enqueueing = client.options(**options).enqueue(count, 0.2)
    there = lambda: queue.deferred() or queue.length() == 2  # noqa: E731
    job = await (await lose_reply(proxy, enqueueing, there))
    assert not job.existing
    assert len(queue.deferred()) + queue.length() == 2
    async with working(server.url()):
        if queue.deferred():
            queue.make_due(job.id)
        assert await job.result(DEADLINE_S) == job.id
    assert tally.runs() == {"first": 1, job.id: 1}


@pytest.mark.servers
async def test_a_job_that_was_there_before_is_said_to_be_existing_again(
    server: Server, proxy: Proxy, client: Client
) -> None:
    """Its own enqueueing did nothing, both times."""
    queue = Sight(server)
    before = queue.entries(), queue.record("first")
    tunnel = await proxy.find("fastq:client")
    tunnel.drop_replies()
    sent = asyncio.ensure_future(client.options(job_id="first").enqueue(count))
    calls = scripts_called(queue)
    await eventually(lambda: scripts_called(queue) > calls)
    tunnel.cut()
    assert (await sent).existing
    assert scripts_called(queue) == calls + 2
    assert (queue.entries(), queue.record("first")) == before


def scripts_called(queue: Sight) -> int:
    stats = cast(dict[str, dict[str, int]], queue.redis.info("commandstats"))
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


# Bulks


def bulk(number: int) -> list[fastq.Call[str]]:
    """Jobs that are named, deferred, or expire."""
    kinds: list[dict[str, Any]] = [{"job_id": ""}, {"defer_by": AN_HOUR_S}, {"expires": 600}]
    calls = []
    for n in range(number):
        options = kinds[n % 3] or {}
        if "job_id" in options:
            options = {"job_id": f"n{n}"}
        calls.append(fastq.call(count).options(**options))
    return calls


def check_all_there_once(queue: Sight, jobs: list[Job[str]]) -> None:
    """And each handle is that of its call."""
    number = len(jobs)
    waiting = [entry["i"].decode() for entry in queue.entries()]
    assert sorted([*waiting, *queue.deferred()]) == sorted(["first", *(job.id for job in jobs)])
    assert len({job.id for job in jobs}) == number
    assert [job.id for job in jobs[::3]] == [f"n{n}" for n in range(0, number, 3)]
    assert sorted(queue.deferred()) == sorted(job.id for job in jobs[1::3])
    assert {"first", *(job.id for n, job in enumerate(jobs) if n % 3 != 1)} == set(waiting)
    assert not any(job.existing for job in jobs)


# Of 1,300 replies of 4 bytes each, to cut within: the first, one at a batch's end, anywhere.
@pytest.mark.parametrize("after", [1, 4, 2_000, 2_002, 3_501, 5_199])
async def test_a_bulk_that_is_cut_is_there_once(
    server: Server, proxy: Proxy, client: Client, after: int
) -> None:
    (await proxy.find("fastq:client")).cut_after(after)
    jobs = await client.enqueue_many(bulk(1_300))
    assert sum(tunnel.name == "fastq:client" for tunnel in proxy.tunnels) > 1
    check_all_there_once(Sight(server), jobs)


def is_cut(tunnel: Tunnel) -> bool:
    return not tunnel.is_open


async def test_a_bulk_that_is_cut_again_and_again_runs_once(
    server: Server, proxy: Proxy, client: Client, tally: Tally
) -> None:
    """In the middle of what is sent again, too."""
    cuts = 0

    async def cut() -> None:
        nonlocal cuts
        while cuts < 5:
            tunnel = await proxy.find("fastq:client")
            tunnel.cut_after(100 + 7 * cuts)
            await eventually(partial(is_cut, tunnel), DEADLINE_S)
            cuts += 1

    async with working(server.url()):
        cutting = asyncio.ensure_future(cut())
        calls = (fastq.call(count).options(job_id=f"n{n}") for n in range(600))
        jobs = await client.enqueue_many(calls)
        assert cuts == 5
        await cutting
        assert [job.id for job in jobs] == [f"n{n}" for n in range(600)]
        await tally.all_once(jobs)


@pytest.mark.servers
async def test_a_server_that_forgets_the_script_in_mid_bulk_takes_all_once(
    server: Server, client: Client
) -> None:
    queue, over = Sight(server), threading.Event()

    def flush() -> None:
        control = server.client()
        while not over.wait(0.001):
            control.script_flush()

    flushing = asyncio.get_running_loop().run_in_executor(None, flush)
    try:
        jobs = await client.enqueue_many(bulk(700))
    finally:
        over.set()
        await flushing
    check_all_there_once(queue, jobs)


async def test_a_plain_job_in_a_bulk_that_is_cut_is_not_sent_again(
    server: Server, proxy: Proxy, client: Client
) -> None:
    """So neither are those behind it; those before it are."""
    queue = Sight(server)
    calls = bulk(30)
    calls[10:10] = [fastq.call(count)]
    sent = await lose_reply(
        proxy, client.enqueue_many(calls), lambda: queue.length() + len(queue.deferred()) == 32
    )
    with pytest.raises(EnqueueUncertain, match=r"^enqueue_many: call 10: .*replies were lost") as c:
        await sent
    assert str(c.value).endswith("so it and some after it may run. 10 jobs were enqueued.")
    assert c.value.enqueued == 10
    assert queue.length() + len(queue.deferred()) == 32
