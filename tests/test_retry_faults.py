"""Retries while workers and connections break: not early, not lost, not twice."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

import fastq
from commands import Command, commands
from counted import Tally, counting
from fastq import Client, Context, Retry
from fastq.scripts import BURY, RETRY
from proxy import Proxy
from retrying import AN_HOUR_S, ENDS, LOST, Flaky, Held, Sight, again, let_go, take_over
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, failure, working

pytestmark = pytest.mark.faults


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    with commands(tmp_path) as run:
        yield run


def know_scripts(queue: Sight) -> None:
    """A reply that says NOSCRIPT is lost as well as any: then nothing would have been done."""
    for script in (BURY, RETRY):
        queue.redis.script_load(script.source)


# Time (fault 20)


@pytest.mark.servers
async def test_many_retries_on_two_workers_are_spaced_as_asked(server: Server) -> None:
    queue, at_ms = Sight(server), dict[str, list[int]]()

    async def run(ctx: Context) -> None:
        at_ms.setdefault(ctx.job_id, []).append(queue.now_ms())
        if ctx.tries < 3:
            raise Retry(defer=0.5)

    async with working(server, run, max_jobs=5) as (client, _), working(server, run, max_jobs=5):
        jobs = await client.enqueue_many([fastq.call(run)] * 50)
        await asyncio.gather(*(job.result(DEADLINE_S) for job in jobs))
        assert queue.is_settled()
    assert {job_id: len(times) for job_id, times in at_ms.items()} == {job.id: 3 for job in jobs}
    gaps = [b - a for times in at_ms.values() for a, b in itertools.pairwise(times)]
    assert min(gaps) >= 500


async def test_a_deferred_job_runs_once_and_not_early_whoever_leads(server: Server) -> None:
    queue, at_ms = Sight(server), list[int]()

    async def run() -> None:
        at_ms.append(queue.now_ms())

    async with working(server, run) as (client, first), working(server, run) as (_, second):
        began_ms = queue.now_ms()
        jobs = await client.options(defer_by=1.5).enqueue_many([fastq.call(run)] * 20)
        # The lead changes while they wait.
        await (first if first._leader.leads else second).stop()
        await asyncio.gather(*(job.result(DEADLINE_S) for job in jobs))
    assert len(at_ms) == 20
    assert min(at_ms) - began_ms >= 1_500
    assert queue.is_settled()


# Long waits (fault 27)


@pytest.mark.servers
@pytest.mark.parametrize("own", [None, "mine"])
async def test_a_retry_outlives_all_that_was_kept_of_the_job(
    server: Server, own: str | None
) -> None:
    queue, flaky = Sight(server), Flaky(None)
    async with working(server, flaky.run, keep_result=5) as (client, _):
        producer = client.options(job_id=own)
        if own is not None:
            # An earlier job of this id has ended, and what is remembered of it ends in a minute.
            await (await producer.enqueue("run")).result(DEADLINE_S)
            assert 0 < cast(int, queue.redis.pttl(queue.record_key("mine"))) <= 60_000
            flaky.again()
        flaky.ends = (Retry(defer=AN_HOUR_S), Retry(defer=AN_HOUR_S), None)
        if own is not None:
            # Its record still has that end; what replaces it must have none.
            await client.options(job_id=own, defer_by=AN_HOUR_S).enqueue("run")
            assert queue.redis.pttl(queue.record_key(own)) == -1
            queue.make_due(own)
        job = client.job(own) if own else await producer.enqueue("run")
        for runs in (1, 2):
            await eventually(lambda: len(flaky.tries) == runs and queue.deferred())  # noqa: B023
            await eventually(lambda: not queue.pending())
            assert queue.redis.pttl(queue.record_key(job.id)) == -1
            # The fence is a result, too; and the job was enqueued long ago.
            queue.redis.pexpire(f"{queue.base}:result:{job.id}", 1)
            queue.change(job.id, ":since", "1")
            await eventually(lambda: queue.result(job.id) is None)
            queue.make_due(job.id)
        assert await job.result(DEADLINE_S) == [1, 2, 3]
    assert queue.is_settled()
    assert queue.keys() == {"fastq:queues", queue.stream, f"{queue.base}:result:{job.id}"}
    assert 0 < queue.result_ttl_ms(job.id) <= 5_000


# Workers that die


@pytest.mark.parametrize("own", [None, "mine"])
@pytest.mark.parametrize("arrives", [True, False], ids=["said", "unsaid"])
async def test_a_worker_killed_before_the_answer_to_its_retry(
    server: Server, tally: Tally, run: Callable[..., Command], own: str | None, arrives: bool
) -> None:
    queue = Sight(server)
    know_scripts(queue)
    async with Proxy(server.port) as proxy, Client(server.url()) as client:
        command = run("fastq-worker", "retrying:Again", "--redis", proxy.url())
        job = await client.options(job_id=own).enqueue(again, AN_HOUR_S)
        await eventually(lambda: len(tally), DEADLINE_S)
        pending = queue.pending()
        writer = await proxy.find(":writer")
        writer.drop_replies() if arrives else writer.freeze()
        sent = writer.sent
        let_go()
        await eventually(lambda: queue.deferred() if arrives else writer.sent > sent)
        command.send(signal.SIGKILL)
        command.process.wait()
        # In one place.
        assert queue.pending() == ({} if arrives else pending)
        assert queue.deferred() == ([job.id] if arrives else [])
        async with working(server, again, lifespan=staticmethod(counting)) as (_, worker):
            if not arrives:
                let_go()
                await take_over(queue, job.id, worker)
                await eventually(queue.deferred)
            queue.make_due(job.id)
            assert await job.result(DEADLINE_S) == 2
    assert tally.runs() == {job.id: 2 if arrives else 3}
    assert queue.is_settled()
    assert queue.dead() == []


# Connections that break


@pytest.mark.servers
@pytest.mark.parametrize("own", [None, "mine"])
@pytest.mark.parametrize("end", ["badly", "later", "at once"])
async def test_an_end_said_again_after_a_lost_connection_is_done_once(
    server: Server, caplog: pytest.LogCaptureFixture, end: str, own: str | None
) -> None:
    queue, job_run = Sight(server), Held(ENDS[end])
    know_scripts(queue)
    async with (
        Proxy(server.port) as proxy,
        Client(server.url()) as client,
        working(server, job_run.run, redis=proxy.url()) as (_, worker),
    ):
        job = await client.options(job_id=own).enqueue("run")
        await eventually(lambda: job_run.runs)
        writer = await proxy.find(":writer")
        writer.drop_replies()
        job_run.go.set()
        await eventually(lambda: queue.dead() or queue.deferred() or job_run.runs == 2)
        writer.cut()
        if end == "badly":
            assert (await failure(job)).message == "zombie"
        else:
            assert await job.result(DEADLINE_S) == "second"
        await eventually(lambda: worker._settler.unanswered == 0 and queue.is_settled())
    assert job_run.runs == (1 if end == "badly" else 2)
    assert len(queue.dead()) == (1 if end == "badly" else 0)
    assert LOST not in caplog.text


@pytest.mark.parametrize("end", ["badly", "later", "at once"])
async def test_an_end_that_never_arrived_is_said_again(server: Server, end: str) -> None:
    queue, job_run = Sight(server), Held(ENDS[end])
    async with (
        Proxy(server.port) as proxy,
        Client(server.url()) as client,
        working(server, job_run.run, redis=proxy.url()),
    ):
        job = await client.enqueue("run")
        await eventually(lambda: job_run.runs)
        proxy.forbidden = (BURY if end == "badly" else RETRY).sha.encode()
        before = len(proxy.tunnels)
        job_run.go.set()
        # Twice a session has ended at the attempt.
        await eventually(lambda: len(proxy.tunnels) >= before + 4)
        assert (len(queue.pending()), queue.deferred(), queue.dead()) == (1, [], [])
        proxy.forbidden = b""
        await (failure(job) if end == "badly" else job.result(DEADLINE_S))
    assert (job_run.runs, len(queue.dead())) == ((1, 1) if end == "badly" else (2, 0))
