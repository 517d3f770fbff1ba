"""Expiry: what is not started in time never is; who waits is told, and it is kept in dead."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from fastq import Client, Job, JobExpired
from fastq.clock import from_ms
from fastq.outcome import Envelope
from fastq.producer import Recorded
from retrying import AN_HOUR_S, Sight
from servers import Server
from stage import Jobs
from waiting import eventually
from workers import DEADLINE_S, still_works, working

AT_READ = "It had expired before a worker was free to start it."
AT_PROMOTION = "It was due only after it had expired."
WHY = " Give it longer with expires=…, or run more workers. It is kept in the queue's dead jobs."


class Echo:
    """A job that counts its runs."""

    def __init__(self) -> None:
        self.runs = 0

    async def echo(self, value: Any) -> Any:
        self.runs += 1
        return value


async def add(x: int, y: int) -> int:
    return x + y


async def enqueue_late(client: Client, name: str, *args: Any, **options: Any) -> Job[Any]:
    """As if it had been enqueued a minute ago, and had expired since."""
    packed = client.options(expires=1, **options)._pack(name, args, {})
    assert isinstance(packed, Recorded)
    packed._args[4] = -60_000
    existing = await client._submit_recorded(client._keys, packed)
    return packed.handle(client, client._keys, name, existing)


async def past(queue: Sight, at_ms: float) -> None:
    await eventually(lambda: queue.now_ms() > at_ms)


async def check_expired(queue: Sight, job: Job[Any], message: str, **fields: bytes) -> None:
    """It is told, and kept with everything that it takes to run it."""
    with pytest.raises(JobExpired) as caught:
        await job.result(DEADLINE_S)
    error = caught.value
    assert str(error) == f"{job!r} ended badly (expired): fastq.errors.JobExpired: {message}{WHY}"
    assert (error.reason, error.type, error.message) == (
        "expired", "fastq.errors.JobExpired", message)  # fmt: skip
    assert error.tries == 0
    assert await job.status() == "expired"
    envelope = Envelope.unpack(queue.result(job.id) or b"")
    assert envelope.status == envelope.reason == "expired"
    assert 0 <= queue.now_ms() - envelope.finished_ms < 2_000 * DEADLINE_S
    [dead] = [entry for entry in queue.dead() if entry["id"] == job.id.encode()]
    assert dead["error"] == envelope.body
    assert int(dead["x"]) <= queue.now_ms()
    assert abs(int(dead["e"]) - queue.now_ms()) < 2_000 * DEADLINE_S
    own = {"id": job.id.encode(), "reason": b"expired", "tries": b"0", "f": b"echo", **fields}
    assert {name: value for name, value in dead.items() if name not in ("e", "x", "error")} == own


CARRIED: dict[str, Any] = {"timeout": 7, "max_tries": 3, "keep_result": 90}
AS_FIELDS = {"o": b'{"timeout":7.0,"max_tries":3}', "k": b"90000"}


@pytest.mark.servers
@pytest.mark.parametrize("job_id", [None, "mine"])
async def test_what_waited_too_long_for_a_worker_has_expired(
    server: Server, job_id: str | None
) -> None:
    """None was there, or the only one was busy."""
    queue, one, hold = Sight(server), Echo(), Jobs()
    async with Client(server.url()) as client:
        brief = client.options(job_id=job_id, expires=0.05, **CARRIED)
        job = await brief.enqueue("echo", "none")
        waiting = asyncio.ensure_future(job.result(DEADLINE_S))
        await past(queue, queue.now_ms() + 100)
        async with working(server, one.echo, hold.long, add, max_jobs=1):
            with pytest.raises(JobExpired):
                await waiting
            await check_expired(queue, job, AT_READ, d=b'["none"]', **AS_FIELDS)
            assert 0 < queue.result_ttl_ms(job.id) <= 90_000
            await client.enqueue("long")
            await hold.has(1)
            job = await brief.enqueue("echo", "busy")
            assert not job.existing
            # Of a function that nobody knows, too: no newer worker will have to be waited for.
            nobody = await client.options(expires=0.05).enqueue("nobody")
            await past(queue, queue.now_ms() + 100)
            hold.go.set()
            if job_id is None:
                await check_expired(queue, job, AT_READ, d=b'["busy"]', **AS_FIELDS)
            for other in (job, nobody):
                with pytest.raises(JobExpired):
                    await other.result(DEADLINE_S)
            assert await still_works(client)
    assert (one.runs, len(queue.dead())) == (0, 3)
    assert queue.is_settled()


@pytest.mark.servers
@pytest.mark.parametrize("job_id", [None, "mine"])
async def test_what_is_due_after_it_has_expired_is_never_queued(
    server: Server, job_id: str | None
) -> None:
    queue, one = Sight(server), Echo()
    async with Client(server.url()) as client:
        due = from_ms(queue.now_ms() + 300)
        late = client.options(job_id=job_id, defer_until=due, expires=0.02, **CARRIED)
        job = await late.enqueue("echo", [1, "ä"])
        assert await job.status() == "deferred"
        async with working(server, one.echo):
            await check_expired(queue, job, AT_PROMOTION, d='[[1,"ä"]]'.encode(), **AS_FIELDS)
        assert 0 < queue.result_ttl_ms(job.id) <= 90_000
    assert one.runs == 0
    assert queue.is_settled()


@pytest.mark.servers
async def test_its_end_is_kept_as_long_as_the_job_or_the_worker_says(server: Server) -> None:
    queue = Sight(server)
    keeps: dict[str, dict[str, Any]] = {
        "worker": {}, "job": {"keep_result": timedelta(hours=1)}, "never": {"keep_result": 0},
        "ever": {"keep_result": None},
    }  # fmt: skip
    ids: dict[str, list[str]] = {}
    async with Client(server.url()) as client:
        for name, keep in keeps.items():
            # One has expired when it is read, the others when they are due.
            read = await enqueue_late(client, "echo", name, **keep)
            due = {"defer_by": AN_HOUR_S, "expires": 2 * AN_HOUR_S, **keep}
            drawn, mine = client.options(**due), client.options(job_id=name, **due)
            jobs = [await one.enqueue("echo", name) for one in (drawn, mine)]
            ids[name] = [job.id for job in (read, *jobs)]
        for job_id in queue.deferred():
            queue.change(job_id, "x", str(queue.now_ms()))
        queue.make_due(*queue.deferred())
        async with working(server, Echo().echo, keep_result=500):
            await eventually(queue.is_settled)
        assert [entry["reason"] for entry in queue.dead()] == [b"expired"] * 12
    left = {name: [queue.result_ttl_ms(job_id) for job_id in ids[name]] for name in keeps}
    assert left["never"] == [-2] * 3
    assert left["ever"] == [-1] * 3
    assert all(400_000 < ms <= 500_000 for ms in left["worker"])
    assert all(3_500_000 < ms <= 3_600_000 for ms in left["job"])


async def test_what_was_started_in_time_may_end_later(server: Server) -> None:
    queue, hold = Sight(server), Jobs()
    async with working(server, hold.long) as (client, _):
        job = await client.options(expires=1.5).enqueue("long")
        enqueued_ms = queue.now_ms()
        await hold.has(1)
        await past(queue, enqueued_ms + 1_500)
        assert await job.status() == "running"
        hold.go.set()
        assert await job.result(DEADLINE_S) == "done"
    assert queue.dead() == []


async def test_what_was_not_started_in_time_is_not_started(server: Server) -> None:
    """By real time; the others pretend."""
    queue, one = Sight(server), Echo()
    async with Client(server.url()) as client:
        job = await client.options(expires=0.1).enqueue("echo", 1)
        x_ms = int(queue.entries()[0]["x"])
        assert x_ms - queue.now_ms() <= 100
        # A worker's clock may be late by what a reply takes.
        await past(queue, x_ms + 1_000)
        assert await job.status() == "queued"
        async with working(server, one.echo):
            with pytest.raises(JobExpired):
                await job.result(DEADLINE_S)
    assert one.runs == 0


@pytest.mark.servers
async def test_a_job_that_has_expired_leaves_its_id_free(server: Server) -> None:
    queue, one = Sight(server), Echo()
    async with Client(server.url()) as client:
        mine = client.options(job_id="mine")
        for deferred in (False, True):
            if deferred:
                expired = await client.options(
                    job_id="mine", expires=0.01, defer_until=in_ms(queue, 300)
                ).enqueue("echo", 1)
            else:
                expired = await enqueue_late(client, "echo", 1, job_id="mine")
            # Until a worker has looked at it, it is there.
            found = [expired.existing, (await mine.enqueue("echo", 2)).existing]
            assert found == [False, True]
            async with working(server, one.echo):
                with pytest.raises(JobExpired):
                    await expired.result(DEADLINE_S)
                again = await mine.enqueue("echo", 3)
                assert not again.existing
                assert await again.result(DEADLINE_S) == 3
    assert one.runs == 2
    assert queue.is_settled()


def in_ms(queue: Sight, ms: int) -> datetime:
    return from_ms(queue.now_ms() + ms)
