"""Enqueueing jobs with a record at a server that is away, frozen or full: one error, in time.

It says whether the job may have been enqueued, and nothing is left of one that was not.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, cast

import pytest
import pytest_asyncio

import fastq
from counted import Tally, count, working
from fastq import Client, Context, EnqueueError, EnqueueUncertain
from proxy import Proxy
from restrained import full
from retrying import AN_HOUR_S, Sight
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, failure
from workers import working as worker_of

pytestmark = pytest.mark.faults

TIMEOUT_S = 0.5
# A time-out for the reply and one for the connection after that, on machines that are slow.
PATIENCE_S = 10 * TIMEOUT_S
LOST = "The reply was lost: "
UNCERTAIN = " The job may have been enqueued; enqueueing it again may run it twice."
NOTHING = "Redis cannot be reached, nothing was enqueued: "
KINDS: list[dict[str, Any]] = [{"job_id": "mine"}, {"defer_by": AN_HOUR_S}, {"expires": 600}]


@pytest_asyncio.fixture
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def client(proxy: Proxy) -> AsyncIterator[Client]:
    """A client that comes through the proxy, and has done so already."""
    async with Client(proxy.url(), connect_timeout=TIMEOUT_S) as client:
        await client.options(job_id="first").enqueue(count)
        yield client


Enqueue = Callable[[Client, dict[str, Any]], Any]


async def one(client: Client, options: dict[str, Any]) -> None:
    await client.options(**options).enqueue(count)


async def many(client: Client, options: dict[str, Any]) -> None:
    await client.enqueue_many([fastq.call(count).options(**options)])


async def error_of(enqueue: Enqueue, client: Client, options: dict[str, Any]) -> Any:
    """What it raises, in time; of a bulk without what that puts around it."""
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises((EnqueueError, EnqueueUncertain)) as caught:
            await enqueue(client, options)
    error: Any = caught.value
    if enqueue is many:
        assert str(error).startswith("enqueue_many: call 0: ")
        assert str(error).endswith(" 0 jobs were enqueued.")
        assert error.enqueued == 0
    return error


each_way = pytest.mark.parametrize("enqueue", [one, many])


@each_way
async def test_a_server_that_is_away_is_told_in_time(
    make_server: Callable[..., Server], enqueue: Enqueue
) -> None:
    server = make_server()
    async with Client(server.url(), connect_timeout=TIMEOUT_S) as client:
        await client.options(job_id="first").enqueue(count)
        server.kill()
        await eventually(lambda: client._link.connection is None)
        for options in KINDS:
            error = await error_of(enqueue, client, options)
            assert (type(error), NOTHING in str(error)) == (EnqueueError, True)
        server.start()
        assert not (await client.options(job_id="mine").enqueue(count)).existing


@each_way
async def test_a_server_that_freezes_is_told_in_time(
    make_server: Callable[..., Server], enqueue: Enqueue
) -> None:
    """It had the request: when it goes on, it may well do it."""
    server = make_server()
    async with Client(server.url(), connect_timeout=TIMEOUT_S) as client:
        await client.options(job_id="first").enqueue(count)
        server.pause()
        try:
            error = await error_of(enqueue, client, KINDS[0])
            assert (type(error), LOST in str(error)) == (EnqueueUncertain, True)
            # This one never got as far as a connection.
            error = await error_of(enqueue, client, {"job_id": "other"})
            assert (type(error), NOTHING in str(error)) == (EnqueueError, True)
        finally:
            server.resume()
        job = await client.options(job_id="mine").enqueue(count)
        assert await job.status() == "queued"
    queue = Sight(server)
    assert [entry["i"] for entry in queue.entries()] == [b"first", b"mine"]


@pytest.mark.servers
@each_way
async def test_a_reply_that_is_lost_for_good_leaves_it_uncertain(
    server: Server, proxy: Proxy, client: Client, enqueue: Enqueue
) -> None:
    """Also where the server is away, or refuses, when it is said again."""
    queue = Sight(server)
    for number, after in enumerate(("away", "refused")):
        client_url = f"redis://127.0.0.1:{proxy.port}/0"
        tunnel = await proxy.find("fastq:client")
        tunnel.drop_replies()
        task = asyncio.ensure_future(error_of(enqueue, client, {"job_id": after}))
        await eventually(partial(has, queue, number + 2))
        if after == "away":
            proxy.refusing = True
        else:
            allow(server, "-eval -evalsha")
        tunnel.cut()
        try:
            error = await task
        finally:
            proxy.refusing = False
            allow(server, "+@all")
        assert type(error) is EnqueueUncertain
        assert LOST in str(error)
        assert UNCERTAIN in str(error)
        assert client_url in str(error)
        assert (await client.options(job_id=after).enqueue(count)).existing


def has(queue: Sight, number: int) -> bool:
    return queue.length() == number


def allow(server: Server, rules: str) -> None:
    cast(Any, server.client()).execute_command("ACL", "SETUSER", "default", *rules.split())


# A full server

FULL = (
    "refused the job: OOM command not allowed when used memory > 'maxmemory'. The server is full "
    "(maxmemory): free memory or raise the limit, then try again."
)


async def echo(value: Any) -> Any:
    return value


@pytest.mark.servers
@each_way
async def test_a_full_server_takes_no_such_job_and_keeps_nothing_of_it(
    server: Server, tally: Tally, enqueue: Enqueue
) -> None:
    queue = Sight(server)
    async with Client(server.url()) as client:
        before = await client.options(job_id="before").enqueue(count)
        late = client.options(job_id="late", defer_by=AN_HOUR_S)
        await late.enqueue(count)
        queue.redis.set(f"{queue.base}:result:mine", "of the last one")
        await eventually(lambda: "fastq:queues" in queue.keys())  # noqa: SIM118
        found = queue.keys(), queue.entries(), queue.deferred()
        with full(server):
            for options in [*KINDS, {"job_id": "mine", "defer_by": 9, "expires": 10}]:
                error = await error_of(enqueue, client, options)
                assert type(error) is EnqueueError
                assert FULL in str(error)
            # What is there needs no memory to be found.
            assert (await client.options(job_id="before").enqueue(count)).existing
            assert (await late.enqueue(count)).existing
            assert (queue.keys(), queue.entries(), queue.deferred()) == found
        mine = await client.options(job_id="mine").enqueue(count)
        assert (mine.existing, queue.result("mine")) == (False, None)
        async with working(server.url()):
            await tally.all_once([before, mine])


@pytest.mark.servers
async def test_a_job_that_cannot_enqueue_itself_anew_ends_as_if_it_had_not_tried(
    server: Server,
) -> None:
    async def again(ctx: Context, n: int) -> str:
        with full(server), pytest.raises(EnqueueError, match="OOM"):
            await ctx.client.options(job_id="mine").enqueue("again", n + 1)
        return f"run {n}"

    async with worker_of(server, again) as (client, _):
        job = await client.options(job_id="mine").enqueue(again, 1)
        assert await job.result(DEADLINE_S) == "run 1"
    assert Sight(server).is_settled()


@pytest.mark.servers
async def test_deferred_jobs_are_promoted_and_expire_on_a_full_server(server: Server) -> None:
    queue = Sight(server)
    # The group is there already.
    async with Client(server.url()) as client, worker_of(server, echo):
        await (await client.enqueue(echo, 0)).result(DEADLINE_S)
    async with Client(server.url()) as client:
        jobs = [
            await client.options(job_id=job_id, defer_by=AN_HOUR_S).enqueue("echo", n)
            for n, job_id in enumerate((None, "mine", None, "late"))
        ]
        for job in jobs[2:]:
            queue.change(job.id, "x", "1")
        queue.redis.zadd(f"{queue.base}:deferred", {job.id: 1 for job in jobs})
        with full(server):
            async with worker_of(server, echo):
                assert [await job.result(DEADLINE_S) for job in jobs[:2]] == [0, 1]
                for job in jobs[2:]:
                    assert (await failure(job)).reason == "expired"
                await eventually(queue.is_settled)
