"""Ids of one's own: while a job waits or runs there is no second one of its id; then it is free.

Jobs that enqueue their own id are in `test_enqueue_itself.py`.
"""

import asyncio
from typing import Any

import pytest

import fastq
from counted import Tally, count
from counted import working as counting
from fastq import Client, Context, Job, Reject, Retry
from fastq.producer import Recorded
from fastq.scripts import ENQUEUE
from retrying import AN_HOUR_S, Sight
from servers import Server
from stage import Jobs
from test_enqueue_itself import only_memory
from waiting import eventually
from workers import DEADLINE_S, failure, working

pytestmark = pytest.mark.servers

MEMORY_MS = 60_000


async def echo(ctx: Context, value: Any) -> Any:
    return value


async def end(ctx: Context, how: str) -> str:
    if how == "fails":
        raise ValueError("no")
    if how == "rejects":
        raise Reject("no")
    if how == "runs again" and ctx.tries == 1:
        raise Retry(defer=0.01)
    if how == "has no tries left":
        raise Retry(defer=0)
    if how == "takes too long":
        await asyncio.sleep(DEADLINE_S)
    return how


ENDS = {
    "returns": "complete", "runs again": "complete", "fails": "failed", "rejects": "failed",
    "takes too long": "failed", "has no tries left": "failed",
}  # fmt: skip


# While it is there


async def test_a_job_that_waits_or_runs_is_returned_and_left_as_it_is(server: Server) -> None:
    queue, hold = Sight(server), Jobs()
    async with Client(server.url()) as client:
        mine = client.options(job_id="mine")
        others = [
            mine, client.options(job_id="mine", defer_by=AN_HOUR_S, keep_result=0, expires=4_000)
        ]  # fmt: skip

        async def check_there(status: str) -> None:
            before = queue.entries(), queue.record("mine"), queue.due_ms("mine")
            for other in others:
                job = await other.enqueue("echo", "another")
                assert (job.id, job.existing, await job.status()) == ("mine", True, status)
            many = await mine.enqueue_many([fastq.call("echo", n) for n in range(3)])
            assert [job.existing for job in many] == [True] * 3
            assert (queue.entries(), queue.record("mine"), queue.due_ms("mine")) == before

        first = await client.options(job_id="mine", defer_by=AN_HOUR_S).enqueue("long")
        assert not first.existing
        await check_there("deferred")
        queue.make_due("mine")
        async with working(server, hold.long):
            await hold.has(1)
            await check_there("running")
            hold.go.set()
            assert await client.job("mine").result(DEADLINE_S) == "done"
        second = await mine.enqueue("long")
        assert not second.existing
        await check_there("queued")
    assert hold.running == 1


async def test_the_handle_of_a_job_that_was_there_waits_for_it(server: Server) -> None:
    """By its own function's return type: the handle is as if this were its own enqueueing."""
    async with Client(server.url()) as client, Client(server.url()) as other:
        await client.options(job_id="mine").enqueue(echo, "first")
        job = await other.options(job_id="mine").enqueue(echo, "second")
        waiting = asyncio.ensure_future(job.result(DEADLINE_S))
        async with working(server, echo):
            assert await waiting == "first"


async def test_of_many_at_once_one_runs(server: Server, tally: Tally) -> None:
    async with Client(server.url()) as a, Client(server.url()) as b, Client(server.url()) as c:
        mine = [client.options(job_id="mine") for client in (a, b, c)]
        jobs = await asyncio.gather(*(one.enqueue(count, 0.2) for one in mine * 10))
        many = await asyncio.gather(
            *(one.enqueue_many(fastq.call(count) for _ in range(50)) for one in mine)
        )
        assert [job.existing for job in jobs].count(False) == 1
        assert all(job.existing for some in many for job in some)
        async with counting(server.url()):
            await eventually(lambda: tally.runs() == {"mine": 1})
            found = await asyncio.gather(*(one.enqueue(count) for one in mine * 10))
            assert all(job.existing for job in found)
            assert {await job.result(DEADLINE_S) for job in jobs} == {"mine"}
            await eventually(lambda: only_memory(Sight(server)))
    assert tally.runs() == {"mine": 1}


async def test_an_id_counts_within_its_queue(server: Server) -> None:
    async with working(server, echo) as (client, _), working(server, echo, queues=["mail"]):
        jobs = [
            await client.options(job_id="mine", queue=queue).enqueue(echo, queue)
            for queue in ("default", "mail")
        ]
        assert [job.existing for job in jobs] == [False, False]
        assert [await job.result(DEADLINE_S) for job in jobs] == ["default", "mail"]


async def test_calls_of_a_bulk_have_ids_of_their_own(server: Server) -> None:
    queue = Sight(server)
    calls = [fastq.call(echo, n).options(job_id=f"mine-{n}") for n in range(600)]
    calls[300:300] = [fastq.call(echo, -1), fastq.call(echo, -2).options(job_id="mine-5")]
    async with Client(server.url()) as client:
        jobs = await client.enqueue_many(calls)
        assert [job.existing for job in jobs] == [n == 301 for n in range(602)]
        plain, again = jobs.pop(300), jobs.pop(300)
        assert ([job.id for job in jobs], again.id) == ([f"mine-{n}" for n in range(600)], "mine-5")
        async with working(server, echo):
            assert [await job.result(DEADLINE_S) for job in jobs] == list(range(600))
            assert (await plain.result(DEADLINE_S), await again.result(DEADLINE_S)) == (-1, 5)
            await eventually(lambda: only_memory(queue))


async def test_ids_are_taken_as_they_are_given(server: Server) -> None:
    ids = ["ä {b} :c", "日" * 170, "*", "a" * 512, "12", "job:mine", "0"]
    async with working(server, echo, end) as (client, _):
        for job_id in ids:
            job = await client.options(job_id=job_id).enqueue(echo, job_id)
            assert (job.id, await job.result(DEADLINE_S)) == (job_id, job_id)
        error = await failure(await client.options(job_id="ä b").enqueue(end, "fails"))
    assert "<Job ä b in queue 'default'> ended badly" in str(error)


# When it has ended


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("keep_result", [600, 0, None])
async def test_when_it_has_ended_its_id_is_free_and_its_result_goes(
    server: Server, how: str, keep_result: int | None
) -> None:
    queue = Sight(server)
    async with Client(server.url()) as client:
        options: dict[str, Any] = {"max_tries": 2, "timeout": 0.05, "keep_result": keep_result}
        job = await client.options(job_id="mine", **options).enqueue(end, how)
        async with working(server, end):
            await eventually(lambda: only_memory(queue))
        assert await job.status() == (ENDS[how] if keep_result != 0 else "not_found")
        ttl_ms = queue.result_ttl_ms("mine")
        assert ttl_ms == {0: -2, None: -1}.get(keep_result, ttl_ms) <= 600_000
        again = await client.options(job_id="mine").enqueue(end, "returns")
        assert (again.existing, await again.status()) == (False, "queued")
        assert queue.result("mine") is None
        async with working(server, end):
            # Of the handle before, too: it is the id that is waited for.
            assert await job.result(DEADLINE_S) == "returns"
    assert len(queue.dead()) == (ENDS[how] == "failed")


# What something else deletes


async def test_a_run_whose_record_is_gone_is_superseded(server: Server) -> None:
    """No end of it is told: another job of this id may have come and gone since."""
    queue = Sight(server)
    holds = {how: Jobs() for how in ENDS}

    async def held(ctx: Context, how: str) -> str:
        await holds[how].long(ctx)
        return await end(ctx, how)

    async with working(server, held) as (client, _):
        names = [how for how in ENDS if how != "takes too long"]
        jobs = [await client.options(job_id=how).enqueue(held, how) for how in names]
        await eventually(lambda: all(holds[how].running for how in names))
        queue.redis.delete(*(queue.record_key(how) for how in names))
        for how in names:
            holds[how].go.set()
        await eventually(lambda: len(queue.dead()) == len(names))
        assert [await job.status() for job in jobs] == ["not_found"] * len(jobs)
    dead = {entry["id"].decode(): entry for entry in queue.dead()}
    for how in names:
        told = {name: dead[how][name] for name in ("reason", "error", "f", "d")}
        assert told == {"reason": b"superseded", "error": b"", "f": b"held",
                        "d": f'["{how}"]'.encode()}  # fmt: skip
    assert only_memory(queue)


async def test_a_job_whose_place_was_deleted_can_be_enqueued_again(server: Server) -> None:
    queue = Sight(server)
    for key, defer_by in (("stream", 0), ("deferred", AN_HOUR_S)):
        async with Client(server.url()) as client:
            await client.options(job_id="mine", defer_by=defer_by).enqueue(echo, "lost")
            queue.redis.delete(f"{queue.base}:{key}")
            assert await client.job("mine").status() == "not_found"
            job = await client.options(job_id="mine").enqueue(echo, key)
            assert (job.existing, await job.status()) == (False, "queued")
            async with working(server, echo):
                assert await job.result(DEADLINE_S) == key


async def test_a_stream_that_is_deleted_under_a_worker_frees_the_ids(server: Server) -> None:
    queue, hold = Sight(server), Jobs()
    async with working(server, hold.long, echo, max_jobs=1) as (client, _):
        await client.options(job_id="running").enqueue("long")
        await hold.has(1)
        await client.options(job_id="queued").enqueue("long")
        # A stream that is made anew in the same ms gives out the same ids once more.
        added_ms = queue.now_ms()
        await eventually(lambda: queue.now_ms() > added_ms)
        queue.redis.delete(queue.stream)
        jobs = [
            await client.options(job_id=job_id).enqueue(echo, job_id)
            for job_id in ("running", "queued")
        ]
        assert [job.existing for job in jobs] == [False, False]
        # The run before says nothing of the one after.
        hold.go.set()
        assert [await job.result(DEADLINE_S) for job in jobs] == ["running", "queued"]
        await eventually(lambda: only_memory(queue))
    assert hold.running == 1


# The same enqueueing once more: a reply was lost


class Said:
    """One enqueueing, which can be said as often as one likes."""

    def __init__(self, client: Client, how: str, **options: Any) -> None:
        packed = client.options(**options)._pack("end", (how,), {})
        assert isinstance(packed, Recorded)
        self._client = client
        self._packed = packed
        self.job: Job[Any] = client.job(packed.job_id)

    async def again(self) -> int:
        connection = await self._client._link.ready()
        existing = await ENQUEUE.call(connection, self._packed._keys, self._packed._args)
        assert isinstance(existing, int)
        return existing


ENQUEUED: dict[str, dict[str, Any]] = {
    "named": {"job_id": "mine"}, "deferred": {"defer_by": 0.001}, "expiring": {"expires": 600},
}  # fmt: skip


@pytest.mark.parametrize("kind", ENQUEUED)
@pytest.mark.parametrize("how", ENDS)
async def test_what_was_done_is_not_done_again(server: Server, kind: str, how: str) -> None:
    """Neither while it waits, nor when it has ended, for a minute."""
    queue = Sight(server)
    async with Client(server.url()) as client:
        for keep_result in (600, 30, 0):
            queue.redis.flushall()
            more = {"max_tries": 2, "timeout": 0.02, "keep_result": keep_result}
            said = Said(client, how, **ENQUEUED[kind], **more)
            assert [await said.again() for _ in range(3)] == [0] * 3
            assert queue.length() + len(queue.deferred()) == 1
            async with working(server, end):
                await eventually(lambda: only_memory(queue))
            dead = queue.dead()
            before = queue.keys(), queue.result(said.job.id)
            assert [await said.again() for _ in range(3)] == [0] * 3
            assert (queue.keys(), queue.result(said.job.id)) == before
            assert (queue.length(), queue.deferred(), queue.dead()) == (0, [], dead)


async def test_what_was_done_is_forgotten_in_time(server: Server) -> None:
    """By a job that ran for longer than any re-sending takes, at once."""
    queue, hold = Sight(server), Jobs()

    async def end(ctx: Context, how: str) -> str:
        return await hold.long(ctx)

    async with working(server, end) as (client, _):
        said = Said(client, "returns", job_id="mine", keep_result=0)
        await said.again()
        await hold.has(1)
        hold.go.set()
        await eventually(queue.is_settled)
        assert 0 < queue.redis.pttl(queue.record_key("mine")) <= MEMORY_MS  # type: ignore[operator]
        hold.go.clear()
        said = Said(client, "returns", job_id="mine", keep_result=0)
        await said.again()
        await hold.has(2)
        queue.change("mine", ":since", str(queue.now_ms() - MEMORY_MS - 1))
        hold.go.set()
        await eventually(queue.is_settled)
        assert not queue.redis.exists(queue.record_key("mine"))


async def test_another_enqueueing_of_the_same_id_is_no_repetition(server: Server) -> None:
    queue = Sight(server)
    async with Client(server.url()) as client:
        first, second = (Said(client, "returns", job_id="mine") for _ in range(2))
        assert [await first.again(), await second.again(), await first.again()] == [0, 1, 0]
        async with working(server, end):
            await eventually(lambda: only_memory(queue))
        assert [await first.again(), queue.length()] == [0, 0]
        assert [await second.again(), queue.length()] == [0, 1]


@pytest.mark.xfail(reason="a record knows the last enqueueing only")
async def test_what_was_done_is_known_behind_what_its_run_enqueued(server: Server) -> None:
    """The job ran, enqueued itself anew and that ran, before the first was said again."""
    queue, ran = Sight(server), list[str]()

    async def end(ctx: Context, how: str) -> None:
        ran.append(how)
        if how == "first":
            await ctx.client.options(job_id="mine", keep_result=0).enqueue("end", "next")

    async with working(server, end) as (client, _):
        said = Said(client, "first", job_id="mine")
        await said.again()
        await eventually(lambda: len(ran) == 2 and only_memory(queue))
        assert await said.again() == 0
        await client.options(job_id="another").enqueue("end", "behind it")
        await eventually(lambda: "behind it" in ran and only_memory(queue))
    assert ran == ["first", "next", "behind it"]
