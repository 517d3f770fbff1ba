"""Promotion: what is due goes into the stream once, by small pages, whatever is in its way."""

import asyncio
import contextlib
import random
import re
import statistics
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, cast

import pytest

import fastq
from fastq import Client, Context, EnqueueError, Job
from fastq._core import ReplyError
from fastq.clock import from_ms
from fastq.connection import Connection, connect
from fastq.duties import promoter_of
from fastq.keys import QueueKeys
from fastq.promoter import Promoter
from fastq.worker import Worker
from restrained import full, permissions
from retrying import AN_HOUR_S, Sight
from servers import Server
from ticking import fleet
from waiting import eventually
from workers import DEADLINE_S, failure, settings_of, working

pytestmark = pytest.mark.faults

MOST_A_PAGE = 250
MOST_BYTES = 1024 * 1024
FEW = 10


async def echo(value: Any) -> Any:
    return value


class Bench:
    """A promoter without a worker, with connections of its own. Everything in it waits an hour."""

    def __init__(self, server: Server, client: Client, connections: list[Connection]) -> None:
        settings = settings_of(server, echo)
        self.queue = Sight(server)
        self.later = client.options(defer_by=AN_HOUR_S)
        self.connections = connections
        self.promoter: Promoter = promoter_of(settings, QueueKeys("default"))

    async def page(self, number: int = 0) -> int:
        moved, _, _ = await self.promoter.promote(self.connections[number])
        return moved

    async def drain(self, number: int = 0) -> list[int]:
        """The pages until nothing is due."""
        pages = []
        while moved := await self.page(number):
            pages.append(moved)
            assert len(pages) < 1_000, "there is no end of it"
        return pages

    def added(self) -> list[str]:
        return [entry["i"].decode() for entry in self.queue.entries()]


@contextlib.asynccontextmanager
async def bench(server: Server, promoters: int = 1) -> AsyncIterator[Bench]:
    settings = settings_of(server, echo).redis
    connections = [await connect(settings) for _ in range(promoters)]
    try:
        async with Client(server.url()) as client:
            yield Bench(server, client, connections)
    finally:
        for connection in connections:
            connection.close()


# Many


@pytest.mark.servers
async def test_a_crowd_is_promoted_by_small_pages_once_by_two_promoters(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """None of the scripts holds the server up; the gate is wide, since machines are slow."""
    number = 10_000
    async with bench(server, promoters=2) as b:
        jobs = await b.later.enqueue_many(fastq.call(echo, n) for n in range(number))
        ids = [job.id for job in jobs]
        for first in range(0, number, 1_000):
            b.queue.redis.zadd(f"{b.queue.base}:deferred", dict.fromkeys(ids[first:][:1_000], 1))
        b.queue.redis.slowlog_reset()
        pages = await asyncio.gather(b.drain(0), b.drain(1))
        slow_us = [one["duration"] for one in cast(Any, b.queue.redis).slowlog_get(100)]
        assert sum(pages[0]) + sum(pages[1]) == number
        assert max(pages[0] + pages[1]) <= MOST_A_PAGE
        assert (sorted(b.added()), b.queue.deferred()) == (sorted(ids), [])
        for job in random.Random(1).sample(jobs, 20):
            assert await job.status() == "queued"
    with capsys.disabled():
        print(f"\nover 10 ms: {len(slow_us)} scripts, the longest {max(slow_us, default=0)} µs")
    assert len(slow_us) <= FEW


@pytest.mark.servers
@pytest.mark.parametrize("kib", [100, 300, 3_000])
async def test_a_page_is_no_more_than_a_mebibyte_or_one_job(server: Server, kib: int) -> None:
    async with bench(server) as b:
        size, number = 1024 * kib, 3 * MOST_BYTES // (1024 * kib) + 3
        jobs = [await b.later.enqueue(echo, "x" * size) for _ in range(number)]
        b.queue.make_due(*(job.id for job in jobs))
        pages = await b.drain()
        assert sum(pages) == number
        # It stops after the job that goes beyond.
        assert max(pages) <= MOST_BYTES // size + 1
        assert sorted(b.added()) == sorted(job.id for job in jobs)


@pytest.mark.servers
async def test_no_more_is_read_than_is_promoted(server: Server) -> None:
    """Reading ten large records for each that is moved held the server up for half a second."""
    async with bench(server) as b:
        jobs = [await b.later.enqueue(echo, "x" * 300 * 1024) for _ in range(13)]
        b.queue.make_due(*(job.id for job in jobs))
        with cast(Any, b.queue.redis).monitor() as monitor:
            assert sum(await b.drain()) == len(jobs)
            b.queue.redis.set("over", 1)
            said = iter(lambda: monitor.next_command()["command"], "SET over 1")
            read = [key for one in said if one.startswith("MGET ") for key in one.split()[1:]]
    assert len(jobs) <= len(read) <= 1.5 * len(jobs)


async def test_small_jobs_among_large_ones_are_no_reason_for_small_pages(valkey: Server) -> None:
    async with bench(valkey) as b:
        jobs = await b.later.enqueue_many(fastq.call(echo, n) for n in range(300))
        b.queue.make_due(*(job.id for job in jobs))
        assert await b.drain() == [100, 100, 100]


# How late


async def test_single_jobs_are_never_early_and_seldom_late(
    valkey: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    dice, within_ms = random.Random(1), 3_000
    entries: dict[str, int] = {}

    async def when(ctx: Context) -> None:
        entries[ctx.job_id] = int(ctx._run.entry.split(b"-")[0])

    async with fleet(valkey, 2, when) as fl:
        await fl.leader()
        queue, due = Sight(valkey), dict[str, float]()
        for _ in range(50):
            at = from_ms(queue.now_ms()) + timedelta(milliseconds=1 + within_ms * dice.random())
            job = await fl.client.options(defer_until=at).enqueue("when")
            due[job.id] = at.timestamp() * 1000
        await eventually(lambda: len(entries) == len(due), DEADLINE_S)
    late = [entries[job_id] - due_ms for job_id, due_ms in due.items()]
    with capsys.disabled():
        print(f"\nlate ms: p50 {statistics.median(late):.1f}, worst {max(late):.1f}")
    assert min(late) >= 0
    # Were it only looked for once a second, it would be 500; slow machines must not fail this.
    assert statistics.median(late) < 400


@pytest.mark.servers
async def test_the_promoter_sleeps_until_the_next_job_is_due(server: Server) -> None:
    async with bench(server) as b:
        assert await b.promoter.run(b.connections[0]) == 1.0
        job = await b.later.enqueue(echo, 1)
        assert await b.promoter.run(b.connections[0]) == 1.0
        deferred = f"{b.queue.base}:deferred"
        b.queue.redis.zadd(deferred, {job.id: b.queue.now_ms() + 600.5})
        assert await b.promoter.run(b.connections[0]) <= 0.601
        assert (b.added(), b.queue.deferred()) == ([], [job.id])
        # A page is over, but not the crowd: at once.
        jobs = await b.later.enqueue_many(fastq.call(echo, n) for n in range(150))
        b.queue.make_due(*(job.id for job in jobs))
        assert await b.promoter.run(b.connections[0]) == 0.0
        assert 0 < await b.promoter.run(b.connections[0]) <= 0.601
        assert len(b.added()) == 150


@pytest.mark.servers
async def test_a_server_that_has_lost_the_script_promotes_all_the_same(server: Server) -> None:
    async with bench(server) as b:
        for n in range(2):
            job = await b.later.enqueue(echo, n)
            b.queue.make_due(job.id)
            b.queue.redis.script_flush()
            assert await b.page() == 1
            assert b.added()[-1] == job.id


# Records that are none


async def broken(b: Bench, how: str) -> Job[Any]:
    job = await b.later.enqueue(echo, how)
    key = b.queue.record_key(job.id)
    b.queue.redis.delete(key)
    if how == "another type":
        b.queue.redis.lpush(key, "somebody's")
    elif how == "damaged":
        b.queue.redis.set(key, b"\xc1\x00 not packed")
    elif how == "no map":
        b.queue.redis.set(key, b"\x01")
    elif how == "no fields":
        b.queue.redis.set(key, b"\x80")
    elif how == "entry gone":
        b.queue.redis.set(key, b"\x81\xa5entry\xa71234-56")
    return job


BROKEN = {
    "missing": "its record is missing",
    "another type": "WRONGTYPE",
    "damaged": "its record is damaged",
    "no map": "its record is damaged",
    "no fields": "its entry is gone",
    "entry gone": "its entry is gone",
}


@pytest.mark.servers
async def test_deferred_jobs_without_a_record_are_dead_and_hold_up_no_others(
    server: Server,
) -> None:
    async with bench(server) as b:
        before = [await b.later.enqueue(echo, "before") for _ in range(3)]
        jobs = {how: await broken(b, how) for how in BROKEN}
        after = [await b.later.enqueue(echo, "after") for _ in range(3)]
        b.queue.make_due(*b.queue.deferred())
        assert await b.drain() == [6 + len(jobs)]
        assert sorted(b.added()) == sorted(job.id for job in before + after)
        for how, job in jobs.items():
            error = await failure(job)
            assert (error.reason, error.type) == ("undecodable", "fastq.decoders.UndecodableError")
            assert BROKEN[how] in error.message
        dead = {entry["id"].decode(): entry for entry in b.queue.dead()}
        assert dead.keys() == {job.id for job in jobs.values()}
        assert all(entry["reason"] == b"undecodable" for entry in dead.values())
        # What is no record of fastq is somebody else's, and stays.
        left = [key for key in sorted(b.queue.keys()) if ":job:" in key]
        foreign = [jobs[how] for how in ("another type", "damaged", "no map")]
        assert left == sorted(b.queue.record_key(job.id) for job in [*before, *after, *foreign])


@pytest.mark.servers
async def test_a_job_that_is_in_the_stream_already_is_not_added_again(server: Server) -> None:
    """A script that broke off, or was refused, at its last step."""
    async with bench(server) as b:
        job = await b.later.enqueue(echo, 1)
        b.queue.make_due(job.id)
        assert await b.drain() == [1]
        b.queue.make_due(job.id)
        record = b.queue.record(job.id)
        assert await b.drain() == [1]
        assert (b.added(), b.queue.deferred(), b.queue.dead()) == ([job.id], [], [])
        assert b.queue.record(job.id) == record
        assert await job.status() == "queued"


# What is refused


@pytest.mark.servers
async def test_a_set_that_is_something_else_is_named_and_when_mended_all_runs(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Sight(server)
    key, aside = f"{queue.base}:deferred", f"{queue.base}:aside"
    async with working(server, echo) as (client, _):
        job = await client.options(defer_by=AN_HOUR_S).enqueue(echo, 1)
        queue.redis.rename(key, aside)
        queue.redis.lpush(key, "something else")
        await eventually(lambda: "promoter was refused" in caplog.text)
        with pytest.raises(EnqueueError, match="WRONGTYPE"):
            await client.options(defer_by=1).enqueue(echo, 2)
        assert await (await client.enqueue(echo, 3)).result(DEADLINE_S) == 3
        queue.redis.rename(aside, key)
        queue.make_due(job.id)
        assert await job.result(DEADLINE_S) == 1
    warned = [r.getMessage() for r in caplog.records if "promoter was refused" in r.getMessage()]
    assert len(warned) == 1
    assert re.search(f"WRONGTYPE.*{re.escape(key)}", warned[0])


# What may be taken from the user while jobs are due, which run then or have expired.
REFUSED = {"run": ["xadd", "zrem", "mset"], "expire": ["xadd", "zrem", "set", "del"]}


@pytest.mark.servers
@pytest.mark.parametrize("end", REFUSED)
async def test_a_promotion_that_is_refused_half_way_changes_nothing_and_is_done_when_mended(
    server: Server, end: str
) -> None:
    queue, runs = Sight(server), list[str]()

    async def note(ctx: Context) -> str:
        runs.append(ctx.job_id)
        return "ran"

    with permissions(server) as user:
        async with working(server, note, redis=user.url) as (client, worker):
            await eventually(lambda: worker._leader.leads)
            for what in REFUSED[end]:
                jobs = [await client.options(defer_by=AN_HOUR_S).enqueue("note") for _ in range(3)]
                for job in jobs if end == "expire" else []:
                    queue.change(job.id, "x", "1")
                before = (runs.copy(), queue.dead())
                user.set(f"-{what}")
                queue.make_due(*(job.id for job in jobs))
                await tried_again_and_again(worker)
                assert sorted(queue.deferred()) == sorted(job.id for job in jobs)
                assert (runs, queue.dead()) == before
                user.set("+@all")
                for job in jobs:
                    if end == "expire":
                        assert (await failure(job)).reason == "expired"
                    else:
                        assert await job.result(DEADLINE_S) == "ran"
                await eventually(queue.is_settled)
    assert (len(runs), len(queue.dead())) == ((9, 0) if end == "run" else (0, 12))
    assert len(set(runs)) == len(runs)


async def tried_again_and_again(worker: Worker) -> None:
    """Its promoter has been called, and refused, some times from now on."""
    promoter = cast(Promoter, worker._leader._duties[0])
    refused, promote = 0, promoter.promote

    async def counted(connection: Connection) -> tuple[int, int, int]:
        nonlocal refused
        try:
            return await promote(connection)
        except ReplyError as error:
            refused += any(why in str(error) for why in ("permission", "can't run this command"))
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promoter, "promote", counted)
        await eventually(lambda: refused >= 3)


@pytest.mark.servers
async def test_a_full_server_promotes_what_it_has(server: Server) -> None:
    queue = Sight(server)
    async with working(server, echo) as (client, worker):
        await eventually(lambda: worker._leader.leads)
        calls = (fastq.call(echo, n).options(defer_by=1 + n / 1_000) for n in range(300))
        jobs = await client.enqueue_many(calls)
        with full(server):
            assert [await job.result(DEADLINE_S) for job in jobs] == list(range(300))
            await eventually(queue.is_settled)
