"""Zombies: runs whose lease is lost. Nothing they say undoes what others did."""

from typing import Any, cast

import pytest

import fastq
from fastq import Retry
from retrying import AN_HOUR_S, ENDS, LOST, Held, Sight, take_over
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, failure, working

pytestmark = pytest.mark.faults


@pytest.mark.servers
@pytest.mark.parametrize("own", [None, "mine"])
@pytest.mark.parametrize("end", ["badly", "later", "at once"])
async def test_a_zombie_moves_no_job_that_another_runs(
    server: Server, caplog: pytest.LogCaptureFixture, end: str, own: str | None
) -> None:
    queue, zombie = Sight(server), Held(ENDS[end])
    async with working(server, zombie.run) as (client, _):
        job = await client.options(job_id=own).enqueue("run")
        await eventually(lambda: zombie.runs)
        queue.claim(job.id, "another")
        before = queue.pending(), queue.record(job.id)
        zombie.go.set()
        await eventually(lambda: LOST in caplog.text)
        assert (queue.pending(), queue.record(job.id)) == before
        assert (queue.length(), queue.deferred(), queue.dead()) == (1, [], [])
        assert (queue.result(job.id), await job.status()) == (None, "running")


@pytest.mark.servers
@pytest.mark.parametrize("own", [None, "mine"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_zombie_changes_nothing_of_a_retry_that_waits(
    server: Server, caplog: pytest.LogCaptureFixture, end: str, own: str | None
) -> None:
    queue, zombie = Sight(server), Held(ENDS[end])

    async def alive() -> str:
        raise Retry(defer=AN_HOUR_S)

    live = fastq.job(alive, name="run")
    async with working(server, zombie.run, max_jobs=1) as (client, _):
        job = await client.options(job_id=own).enqueue("run")
        await eventually(lambda: zombie.runs)
        async with working(server, live) as (_, other):
            await take_over(queue, job.id, other)
            await eventually(queue.deferred)
        before = sight_of(queue, job.id)
        zombie.go.set()
        await eventually(lambda: LOST in caplog.text)
        assert sight_of(queue, job.id) == before
        assert before[0] == (None if own else b"~")
        queue.make_due(job.id)
        assert await job.result(DEADLINE_S) == "second"
    assert queue.dead() == []
    assert queue.is_settled()


def sight_of(queue: Sight, job_id: str) -> tuple[Any, ...]:
    """All that there is of a job."""
    places = queue.length(), queue.pending(), queue.dead(), queue.due_ms(job_id)
    record = queue.record(job_id), cast(int, queue.redis.pttl(queue.record_key(job_id))) > 0
    return queue.result(job_id), *places, *record


@pytest.mark.parametrize("own", [None, "mine"])
@pytest.mark.parametrize("end", ENDS)
async def test_a_zombie_changes_nothing_of_a_dead_job(
    server: Server, caplog: pytest.LogCaptureFixture, end: str, own: str | None
) -> None:
    queue, zombie = Sight(server), Held(ENDS[end])

    async def alive() -> None:
        raise LookupError("the first outcome wins")

    async with working(server, zombie.run) as (client, _):
        job = await client.options(job_id=own).enqueue("run")
        await eventually(lambda: zombie.runs)
        async with working(server, fastq.job(alive, name="run")) as (_, other):
            await take_over(queue, job.id, other)
            await eventually(queue.dead)
        before = sight_of(queue, job.id)
        zombie.go.set()
        await eventually(lambda: LOST in caplog.text)
        assert sight_of(queue, job.id) == before
        assert (await failure(job)).message == "the first outcome wins"
