"""Networks that delay, shred, cut and forget: the same results, and nothing runs twice."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio
import redis

import workers
from counted import Tally, count, enqueue, kill_named, left_over, working
from fastq import Client, Context, fetcher, session
from fastq.connection import Connection
from fastq.scripts import OWN_PENDING
from fastq.session import Session, kill_old_reader, reader_name
from proxy import Proxy
from servers import DEFAULT, Server
from waiting import eventually

pytestmark = pytest.mark.faults

DEADLINE_S = 1.0


@pytest_asyncio.fixture
async def proxy(valkey: Server) -> AsyncIterator[Proxy]:
    async with Proxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence is noticed after a second or a little more."""
    monkeypatch.setattr(session, "REPLY_DEADLINE_S", DEADLINE_S)
    monkeypatch.setattr(fetcher, "BLOCK_S", DEADLINE_S / 2)


async def test_a_reader_that_the_network_forgot_swallows_no_job(
    valkey: Server, proxy: Proxy, tally: Tally, quick: None
) -> None:
    async with Client(valkey.url()) as client, working(proxy.url()):
        await tally.all_once(await enqueue(client, 1))
        for _ in range(3):
            tunnel = await proxy.find(":reader")
            before = reader_ids(valkey.client())
            tunnel.freeze()
            # These the server gives to the old reader, which is still there as far as it knows.
            await tally.all_once(await enqueue(client, 10))
            assert tunnel.is_open
            assert before.isdisjoint(reader_ids(valkey.client()))
        await eventually(lambda: left_over(valkey) == (0, 0))


def reader_ids(client: redis.Redis) -> set[int]:
    found = cast(list[dict[str, str]], client.client_list())
    return {int(one["id"]) for one in found if one["name"].endswith(":reader")}


async def test_a_reader_cut_off_while_it_is_not_reading_is_noticed(
    valkey: Server, proxy: Proxy, tally: Tally, quick: None
) -> None:
    async with Client(valkey.url()) as client, working(proxy.url(), max_jobs=1):
        jobs = await enqueue(client, 1, 1.0)
        await eventually(lambda: len(tally))
        (await proxy.find(":reader")).freeze()
        await tally.all_once(jobs + await enqueue(client, 3))


@pytest.mark.parametrize("which", [":reader", ":writer"])
async def test_replies_cut_at_any_byte_cost_nothing(
    valkey: Server, proxy: Proxy, tally: Tally, which: str
) -> None:
    chance = random.Random(which)
    async with Client(valkey.url()) as client, working(proxy.url(), max_jobs=50):
        for _ in range(40):
            tunnel = await proxy.find(which)
            tunnel.cut_after(chance.randint(1, 1_500))
            jobs = await enqueue(client, 60)
            await tally.all_once(jobs)
        await eventually(lambda: left_over(valkey) == (0, 0))
    # The budget was often spent: otherwise this would have shown nothing.
    assert sum(not tunnel.is_open for tunnel in proxy.tunnels) > 40


async def test_requests_cut_at_any_byte_cost_nothing(
    valkey: Server, proxy: Proxy, tally: Tally
) -> None:
    async with Client(valkey.url()) as client, working(proxy.url(), max_jobs=50):
        jobs = await enqueue(client, 2_000, 0.002)
        for _ in range(20):
            before = len(tally)
            proxy.cut()
            await eventually(lambda: len(tally) > min(before + 50, 1_999))  # noqa: B023
        await tally.all_once(jobs)
        await eventually(lambda: left_over(valkey) == (0, 0))


async def test_one_byte_at_a_time_gives_the_same_results(proxy: Proxy, tally: Tally) -> None:
    proxy.chunk = 1
    async with Client(proxy.url()) as client, working(proxy.url(), max_jobs=10):
        await tally.all_once(await enqueue(client, 50))


async def test_50_ms_each_way_give_the_same_results(proxy: Proxy, tally: Tally) -> None:
    proxy.delay_s = 0.05
    async with Client(proxy.url()) as client, working(proxy.url()):
        jobs = await enqueue(client, 1_000)
        jobs += await asyncio.gather(*(client.enqueue(count) for _ in range(500)))
        await tally.all_once(jobs)


async def test_a_frozen_server_is_noticed_and_costs_no_job(
    tally: Tally, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(DEFAULT) as server:
        async with Client(server.url()) as client, working(server.url(), max_jobs=50):
            jobs = await enqueue(client, 1_000, 0.005)
            await eventually(lambda: len(tally) > 300)
            server.pause()
            await eventually(lambda: "no reply for 1 s" in caplog.text, 3 * DEADLINE_S)
            # Long enough for tries to connect, too, which the kernel accepts and nobody answers.
            await asyncio.sleep(3 * DEADLINE_S)
            server.resume()
            jobs.append(await client.enqueue(count))
            await tally.all_once(jobs)
            await eventually(lambda: left_over(server) == (0, 0))
    assert len(caplog.records) < 10, caplog.text


async def test_a_job_that_ends_as_the_connection_is_made_anew_is_not_taken_for_lost(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, gate = [], asyncio.Event()

    async def gated(ctx: Context) -> None:
        runs.append(ctx.job_id)
        await gate.wait()

    async with workers.working(valkey, gated) as (client, worker):
        job = await client.enqueue("gated")
        await eventually(lambda: runs)
        beat = worker._heart.beat

        async def beat_and_let_it_end(connection: Connection) -> None:
            # The job ends in the very turn in which the worker looks for what is lost.
            await beat(connection)
            gate.set()
            await asyncio.sleep(0)

        monkeypatch.setattr(worker._heart, "beat", beat_and_let_it_end)
        # A server that does not know the script yet would look only after the job's end was told.
        valkey.client().script_load(cast(str, OWN_PENDING.source))
        assert kill_named(valkey, ":writer")
        await job.result(10)
        await eventually(lambda: left_over(valkey) == (0, 0))
    assert runs == [job.id]


async def test_a_stranger_with_the_number_of_the_old_reader_lives(
    valkey: Server, tally: Tally
) -> None:
    async with working(valkey.url()) as worker:
        session = await eventually(lambda: worker._session)
        assert session is not None
        writer = session.writer
        with valkey.client() as stranger:
            number = stranger.client_id()
            for name in ("somebody", reader_name("host:1:other")):
                stranger.client_setname(name)
                await kill_old_reader(writer, worker.consumer, number)
                assert stranger.client_id() == number
            stranger.client_setname(reader_name(worker.consumer))
            await kill_old_reader(writer, worker.consumer, number)
            assert number not in [
                int(one["id"]) for one in cast(list[Any], valkey.client().client_list())
            ]


async def test_a_restarted_server_s_numbers_harm_nobody(
    tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the old reader's number now: a stranger, or the worker's own new reader."""
    open_session, opened = Session.open, 0

    async def count(*args: Any) -> Session:
        nonlocal opened
        session = await open_session(*args)
        opened += 1
        return session

    monkeypatch.setattr(Session, "open", count)
    with Server(DEFAULT) as server:
        looking = server.client()
        async with Proxy(server.port) as proxy, working(proxy.url()):
            for own in (False, True):
                await eventually(lambda: reader_ids(looking))
                number = max(reader_ids(looking))
                proxy.refusing = True
                server.kill()
                server.start()
                strangers = take_numbers(looking, server, number - 2 if own else number)
                before = opened
                proxy.refusing = False
                await eventually(lambda: reader_ids(looking))
                async with Client(server.url()) as client:
                    await tally.all_once(await enqueue(client, 5))
                # One session was opened, so none of its connections was killed.
                assert opened == before + 1
                assert (reader_ids(looking) == {number}) is own
                for stranger in strangers:
                    assert stranger.ping()


def take_numbers(looking: redis.Redis, server: Server, last: int) -> list[redis.Redis]:
    """Strangers' connections that have all numbers up to `last`."""
    strangers = [looking]
    while cast(int, strangers[-1].client_id()) < last:
        strangers.append(server.client())
    return strangers


async def test_a_server_that_hangs_up_at_once_is_not_called_in_a_loop(
    valkey: Server, proxy: Proxy, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client(valkey.url()) as client, working(proxy.url()):
        await tally.all_once(await enqueue(client, 1))
        proxy.forbidden = b"XREADGROUP"
        proxy.cut()
        opened = len(proxy.tunnels)
        await asyncio.sleep(2)
        assert len(proxy.tunnels) - opened < 30
        assert len(caplog.records) < 30, caplog.text
        proxy.forbidden = b""
        await tally.all_once(await enqueue(client, 1))
