"""Deferred jobs: not early by the server's clock, and run by whoever has a slot.

Whether a job was early is told by the server's `TIME`, and by when the job says it was enqueued, so
without tolerance. How late it was is not asked: machines are slow.
"""

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import fastq
from fastq import Client, Context, Job
from fastq.clock import from_ms
from retrying import AN_HOUR_S, Sight
from servers import Server
from stage import Jobs
from waiting import eventually
from workers import DEADLINE_S, failure, working


async def when(ctx: Context) -> tuple[int, datetime]:
    """When it runs, in ms of the server, and when it was enqueued."""
    connection = await ctx.client._link.ready()
    seconds, micros = await connection.call("TIME")
    return int(seconds) * 1000 + int(micros) // 1000, ctx.enqueued_at


async def echo(value: Any) -> Any:
    return value


async def ran(job: Job[Any]) -> tuple[int, int]:
    """When the job ran, and when it was enqueued, in ms of the server."""
    started_ms, enqueued_at = await job.result(DEADLINE_S)
    at = datetime.fromisoformat(enqueued_at)
    return started_ms, round(at.timestamp() * 1000)


# When it runs


@pytest.mark.servers
async def test_a_deferred_job_does_not_run_early(server: Server) -> None:
    queue = Sight(server)
    async with working(server, when) as (client, _):
        before_ms = queue.now_ms()
        # So near to each other that none is the next one's time.
        delays = {n: timedelta(milliseconds=15 * n + 1, microseconds=n % 2) for n in range(25)}
        jobs = [await client.options(defer_by=delay).enqueue("when") for delay in delays.values()]
        after_ms = queue.now_ms()
        for n, job in enumerate(jobs):
            started_ms, enqueued_ms = await ran(job)
            # The first enqueueing, whatever entry it came as.
            assert before_ms <= enqueued_ms <= after_ms
            assert started_ms >= enqueued_ms + 15 * n + 1 + n % 2
    assert queue.is_settled()


@pytest.mark.servers
async def test_a_job_deferred_until_a_time_does_not_run_before_it(server: Server) -> None:
    queue = Sight(server)
    async with working(server, when) as (client, _):
        due_ms = queue.now_ms() + 300
        due = from_ms(due_ms).astimezone()
        job = await client.options(defer_until=due).enqueue("when")
        until = client.options(job_id="mine", defer_until=due + timedelta(microseconds=1))
        mine = await until.enqueue("when")
        assert (await ran(job))[0] >= due_ms
        assert (await ran(mine))[0] >= due_ms + 1


@pytest.mark.servers
async def test_a_time_that_is_over_is_at_once(server: Server) -> None:
    queue = Sight(server)
    async with Client(server.url()) as client:
        for year in (1960, 2020):
            at = datetime(year, 1, 1, tzinfo=UTC)
            job = await client.options(defer_until=at).enqueue("echo", year)
            assert (await job.status(), queue.deferred()) == ("queued", [])
        # It has waited nowhere, so its entry tells when it was enqueued.
        assert [set(entry) for entry in queue.entries()] == [{"i", "f", "d"}] * 2


async def test_deferred_by_nothing_is_a_plain_job(server: Server) -> None:
    queue = Sight(server)
    async with Client(server.url()) as client:
        job = await client.options(defer_by=0).enqueue("echo", 1)
        [again] = await client.options(defer_by=9).enqueue_many(
            [fastq.call("echo", 2).options(defer_by=timedelta(0))]
        )
        assert await job.status() == await again.status() == "queued"
        assert [entry for entry in queue.entries() if set(entry) != {"f", "d"}] == []
        assert {key for key in queue.keys() if ":job:" in key} == set()  # noqa: SIM118
        # Named, it has a record, and waits no longer for it.
        mine = await client.options(job_id="mine", defer_by=0).enqueue("echo", 3)
        assert (await mine.status(), queue.deferred()) == ("queued", [])


@pytest.mark.servers
async def test_it_is_deferred_then_queued_then_running_then_complete(server: Server) -> None:
    queue, hold = Sight(server), Jobs()
    async with Client(server.url()) as client:
        ids = [None, "mine"]
        jobs = [
            await client.options(job_id=i, defer_by=AN_HOUR_S, keep_result=60).enqueue("long")
            for i in ids
        ]
        assert [await job.status() for job in jobs] == ["deferred"] * 2
        assert sorted(queue.deferred()) == sorted(job.id for job in jobs)
        assert queue.length() == 0
        assert all(0 < (queue.due_ms(j.id) or 0) - queue.now_ms() <= 3_600_000 for j in jobs)
        waiting = [asyncio.ensure_future(job.result(DEADLINE_S)) for job in jobs]
        async with working(server, hold.long, max_jobs=1):
            queue.make_due(*(job.id for job in jobs))
            await eventually(lambda: hold.running)
            await eventually(lambda: not queue.deferred())
            assert sorted([await job.status() for job in jobs]) == ["queued", "running"]
            hold.go.set()
            # Whoever has waited since it was deferred is told.
            assert await asyncio.gather(*waiting) == ["done"] * 2
            assert [await job.status() for job in jobs] == ["complete"] * 2
    assert queue.is_settled()


@pytest.mark.servers
async def test_all_that_was_asked_for_comes_with_it(server: Server) -> None:
    queue = Sight(server)

    async def late(text: str) -> None:
        await asyncio.sleep(DEADLINE_S)

    async with working(server, late) as (client, _):
        producer = client.options(
            job_id="mine", defer_by=0.02, timeout=0.05, max_tries=1, keep_result=50, expires=1_000
        )
        error = await failure(await producer.enqueue("late", "ä\x00"))
        assert error.reason == "timeout"
        assert 40_000 < queue.result_ttl_ms("mine") <= 50_000
    [dead] = queue.dead()
    assert (dead["k"], dead["d"]) == (b"50000", '["ä\\u0000"]'.encode())
    assert dead["o"] == b'{"timeout":0.05,"max_tries":1}'
    assert int(dead["x"]) - int(dead["e"]) == 1_000_000


# Who promotes it


@pytest.mark.servers
async def test_a_worker_whose_slots_are_all_taken_promotes_for_the_others(server: Server) -> None:
    queue, hold = Sight(server), Jobs()
    async with working(server, hold.long, echo, max_jobs=1) as (client, busy):
        await client.enqueue("long")
        await eventually(lambda: hold.running and busy._leader.leads)
        job = await client.options(defer_by=0.02).enqueue("echo", 1)
        await eventually(lambda: not queue.deferred())
        assert (await job.status(), queue.length()) == ("queued", 2)
        async with working(server, echo) as (_, idle):
            assert await job.result(DEADLINE_S) == 1
            later = client.options(defer_by=0.01)
            jobs = [await later.enqueue("echo", n) for n in range(5)]
            assert [await one.result(DEADLINE_S) for one in jobs] == list(range(5))
            assert (busy._leader.leads, idle._leader.leads) == (True, False)
        hold.go.set()
    assert queue.is_settled()


async def test_an_idle_worker_promotes_while_another_is_busy(server: Server) -> None:
    queue, hold = Sight(server), Jobs()
    async with working(server, hold.long, echo, max_jobs=1) as (client, busy):
        await client.enqueue("long")
        await eventually(lambda: hold.running)
        async with working(server, echo) as (_, idle):
            queue.redis.set(f"{queue.base}:leader", idle.consumer, px=3_000)
            await eventually(lambda: idle._leader.leads and not busy._leader.leads)
            later = client.options(defer_by=0.01)
            jobs = [await later.enqueue("echo", n) for n in range(5)]
            assert [await one.result(DEADLINE_S) for one in jobs] == list(range(5))
        hold.go.set()
    assert queue.is_settled()


@pytest.mark.servers
async def test_a_job_that_is_due_before_the_others_wakes_the_leader(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks no more by itself: whatever runs, runs because it was told."""
    monkeypatch.setattr("fastq.promoter._LOOK_S", 10.0 * DEADLINE_S)
    queue = Sight(server)
    async with working(server, echo) as (client, worker):
        await eventually(lambda: worker._leader.leads)
        await eventually(lambda: _listeners(queue))
        far = await client.options(defer_by=AN_HOUR_S).enqueue("echo", 0)
        for n in range(3):
            job = await client.options(defer_by=0.05).enqueue("echo", n)
            assert await job.result(DEADLINE_S) == n
        # Of a bulk the first, or any that comes before it, is enough.
        calls = [fastq.call("echo", n).options(defer_by=(6 - n) / 50) for n in range(6)]
        jobs = await client.enqueue_many(calls)
        assert [await job.result(DEADLINE_S) for job in jobs] == list(range(6))
        assert await far.status() == "deferred"


def _listeners(queue: Sight) -> int:
    found = cast(Any, queue.redis).pubsub_numsub(f"{queue.base}:control:0")
    return int(found[0][1])


async def test_a_job_that_nobody_was_told_of_runs_at_the_next_look(server: Server) -> None:
    """Pub/sub is lossy: what a wake would have said is seen within a second or so."""
    queue = Sight(server)
    async with working(server, echo) as (client, worker):
        await eventually(lambda: worker._leader.leads)
        job = await client.options(defer_by=AN_HOUR_S).enqueue("echo", 1)
        queue.redis.zadd(f"{queue.base}:deferred", {job.id: 1})
        assert await job.result(DEADLINE_S) == 1


@pytest.mark.servers
async def test_many_that_are_due_at_once_run_in_the_order_of_their_times(server: Server) -> None:
    """More than are promoted by one script."""
    queue, order = Sight(server), list[int]()

    async def note(n: int) -> None:
        order.append(n)

    async with Client(server.url()) as client:
        later = client.options(defer_by=AN_HOUR_S)
        jobs = await later.enqueue_many(fastq.call("note", n) for n in range(350))
        due = {job.id: 1 + n for n, job in enumerate(jobs)}
        queue.redis.zadd(f"{queue.base}:deferred", cast(Any, due))
        async with working(server, note, max_jobs=1):
            await asyncio.gather(*(job.result(DEADLINE_S) for job in jobs))
    assert order == list(range(350))
    assert queue.is_settled()


# Among others

KINDS: list[dict[str, Any]] = [
    {}, {"job_id": "n{}"}, {"defer_by": AN_HOUR_S}, {"job_id": "d{}", "defer_by": AN_HOUR_S},
    {"expires": AN_HOUR_S}, {"defer_by": 0}, {"job_id": "n{}", "expires": AN_HOUR_S},
    {"defer_until": datetime(1970, 1, 1, tzinfo=UTC)}, {"timeout": 5},
]  # fmt: skip
PLAIN: tuple[dict[str, Any], ...] = ({}, {"defer_by": 0}, {"timeout": 5})


def mixed(number: int) -> list[fastq.Call[Any]]:
    found = []
    for n in range(number):
        options = dict(KINDS[n % len(KINDS)])
        if "job_id" in options:
            options["job_id"] = options["job_id"].format(n)
        found.append(fastq.call("echo", n).options(**options))
    return found


@pytest.mark.servers
@pytest.mark.parametrize("handles", [True, False])
async def test_a_bulk_may_mix_jobs_of_all_kinds(server: Server, handles: bool) -> None:
    """Over several batches: each at its place, with its handle."""
    number, queue = 1_300, Sight(server)
    async with Client(server.url()) as client:
        found = await client.enqueue_many(mixed(number), handles=handles)
        waiting = [n for n in range(number) if "defer_by" not in KINDS[n % 9] or n % 9 == 5]
        assert [int(entry["d"][1:-1]) for entry in queue.entries()] == waiting
        assert len(queue.deferred()) == number - len(waiting)
        if isinstance(found, int):
            assert found == number
            return
        assert [job.existing for job in found] == [False] * number
        for n, job in enumerate(found):
            check_handle(n, job)
        async with working(server, echo):
            queue.make_due(*queue.deferred())
            assert [await job.result(DEADLINE_S) for job in found] == list(range(number))
        again = await client.enqueue_many(mixed(number)[:20] * 2)
    assert [job.existing for job in again[:20]] == [False] * 20
    taken = ["job_id" in KINDS[n % 9] for n in range(20)]
    assert [job.existing for job in again[20:]] == taken
    assert [one.id == other.id for one, other in zip(again[:20], again[20:], strict=True)] == taken


def check_handle(n: int, job: Job[Any]) -> None:
    options = KINDS[n % len(KINDS)]
    if "job_id" in options:
        assert job.id == options["job_id"].format(n)
    else:
        # The id of a plain job is its entry's; one that has to be known before is drawn.
        assert (re.fullmatch(r"\d+-\d+", job.id) is not None) is (options in PLAIN)
