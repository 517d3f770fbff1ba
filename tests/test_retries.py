"""Retries: who asks for them, who limits them, and what is told of them."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

import fastq
from fastq import Context, JobTimeout, Reject, Retry
from fastq.outcome import Outcome
from retrying import AN_HOUR_S, SOON, Flaky, Sight
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, Queue, failure, still_works, working


async def add(x: int, y: int) -> int:
    return x + y


# Who asks for it


@pytest.mark.servers
async def test_a_job_that_asks_for_it_runs_again_and_not_too_soon(server: Server) -> None:
    queue, at_ms = Sight(server), list[int]()

    async def again(ctx: Context) -> str:
        at_ms.append(queue.now_ms())
        if ctx.tries < 3:
            raise Retry(defer=0.25)
        return ctx.job_id

    async with working(server, again) as (client, _):
        for job_id in (None, "mine"):
            at_ms.clear()
            job = await client.options(job_id=job_id).enqueue(again)
            assert await job.result(DEADLINE_S) == job.id
            assert queue.tries_told(job.id) == len(at_ms) == 3
            gaps = [later - sooner for sooner, later in itertools.pairwise(at_ms)]
            # By the server's own clock, so without any tolerance.
            assert min(gaps) >= 250
    assert queue.is_settled()
    assert queue.dead() == []


async def test_the_backoff_says_how_long_where_the_job_does_not(server: Server) -> None:
    asked: dict[str, list[int]] = {"worker": [], "job": []}

    def backoff(name: str) -> Callable[[int], float]:
        return lambda tries: asked[name].append(tries) or 0.01

    flaky = [Flaky(Retry(), OSError(), Retry(defer=0), None) for _ in range(2)]
    plain = fastq.job(flaky[0].run, name="plain", retry_on=OSError)
    own = fastq.job(flaky[1].run, name="own", retry_on=OSError, backoff=backoff("job"))
    async with working(server, plain, own, backoff=staticmethod(backoff("worker"))) as (client, _):
        for name in ("plain", "own"):
            assert await (await client.enqueue(name)).result(DEADLINE_S) == [1, 2, 3, 4]
    # Not for the run that said "at once" itself.
    assert asked == {"worker": [1, 2], "job": [1, 2]}


async def test_a_backoff_that_fails_stops_no_job(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(tries: int) -> float:
        raise RuntimeError("on purpose")

    flaky = Flaky(Retry(), None)
    async with working(server, fastq.job(flaky.run, name="f", backoff=broken)) as (client, _):
        assert await (await client.enqueue("f")).result(DEADLINE_S) == [1, 2]
    assert "backoff(1) failed" in caplog.text


@pytest.mark.servers
async def test_a_retry_at_once_goes_straight_to_the_stream(server: Server) -> None:
    queue = Sight(server)
    for job_id, name in ((None, "at_once"), ("mine", "at_once"), (None, "later")):
        await _check_where_it_waits(server, queue, job_id, name)


async def _check_where_it_waits(
    server: Server, queue: Sight, job_id: str | None, name: str
) -> None:
    """By a worker that reads no more when its job ends."""

    async def at_once() -> None:
        worker.quiet()
        await eventually(lambda: not worker._fetcher.reading)
        raise Retry(defer=0)

    async def later() -> None:
        worker.quiet()
        raise Retry(defer=AN_HOUR_S)

    queue.redis.flushall()
    async with working(server, at_once, later) as (client, worker):
        job = await client.options(job_id=job_id).enqueue(name)
        await eventually(lambda: queue.runs_again() and not queue.pending())
        due_ms = queue.due_ms(job.id)
        if name == "at_once":
            (entry,) = queue.entries()
            assert (await job.status(), due_ms) == ("queued", None)
            assert (entry["i"].decode(), entry["t"]) == (job.id, b"1")
        else:
            assert (await job.status(), queue.length()) == ("deferred", 0)
            assert 0 < (due_ms or 0) - queue.now_ms() <= AN_HOUR_S * 1000
            assert queue.record(job.id)["t"] == b"1"
        # A second life of a plain id: the outcome of a zombie of the first must find no place.
        fence = (b"~", -1) if job_id is None else (None, -2)
        assert (queue.result(job.id), queue.result_ttl_ms(job.id)) == fence


async def test_retry_on_names_types_and_their_bases(server: Server) -> None:
    flaky = Flaky(ConnectionResetError(), OSError("full"), TimeoutError("its own"), None)
    run = fastq.job(flaky.run, name="run", max_tries=9)
    async with working(server, run, retry_on=(KeyError, OSError), **SOON) as (client, _):
        assert await (await client.enqueue("run")).result(DEADLINE_S) == [1, 2, 3, 4]
        flaky.ends = (LookupError("no subclass of KeyError"),)
        error = await failure(await client.enqueue("run"))
    assert (error.reason, error.type, error.tries) == ("failed", "LookupError", 1)


async def test_what_a_job_says_of_retry_on_stands_in_for_the_workers(server: Server) -> None:
    never = fastq.job(Flaky(OSError(), None).run, name="never", retry_on=())
    other = fastq.job(Flaky(KeyError(), None).run, name="other", retry_on=[KeyError])
    async with working(server, never, other, retry_on=OSError, **SOON) as (client, _):
        assert (await failure(await client.enqueue("never"))).reason == "failed"
        assert await (await client.enqueue("other")).result(DEADLINE_S) == [1, 2]


async def test_reject_is_final_whatever_retry_on_says(server: Server) -> None:
    flaky = Flaky(Retry(), Reject("no address"), None)
    async with working(server, flaky.run, retry_on=(BaseException, Reject), **SOON) as (client, _):
        error = await failure(await client.enqueue("run"))
    assert (error.reason, error.message, error.tries) == ("rejected", "no address", 2)
    assert flaky.tries == [1, 2]
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"rejected"]


@pytest.mark.parametrize("end", [Retry(), OSError()], ids=["asks", "named"])
async def test_sync_functions_run_again_too(server: Server, end: Exception) -> None:
    flaky = Flaky(end, end, None)
    async with working(server, flaky.sync, retry_on=OSError, **SOON) as (client, _):
        assert await (await client.enqueue("sync")).result(DEADLINE_S) == [1, 2, 3]


# Who limits it


@pytest.mark.servers
async def test_the_most_specific_max_tries_wins_and_all_counts_agree(server: Server) -> None:
    queue = Sight(server)
    named, asks = Flaky(OSError("on purpose")), Flaky(Retry("busy"))
    mine = fastq.job(named.run, name="mine", max_tries=3)
    async with working(server, named.run, mine, fastq.job(asks.run, name="asks"),
                       max_tries=2, retry_on=OSError, **SOON) as (client, _):  # fmt: skip
        for name, options, tries in (
            ("run", {}, 2),
            ("mine", {}, 3),
            ("mine", {"max_tries": 4}, 4),
            ("mine", {"max_tries": 1}, 1),
            ("mine", {"max_tries": 2, "job_id": "named"}, 2),
            ("asks", {"max_tries": 3, "defer_by": 0.05}, 3),
        ):
            flaky = asks if name == "asks" else named
            flaky.again()
            job = await client.options(**cast(Any, options)).enqueue(name)
            error = await failure(job)
            assert (error.reason, error.tries) == ("retries", tries)
            assert flaky.tries == list(range(1, tries + 1))
            dead = queue.dead()[-1]
            assert (dead["id"].decode(), dead["reason"]) == (job.id, b"retries")
            assert int(dead["tries"]) == tries == queue.tries_told(job.id)
    assert queue.is_settled()


@pytest.mark.servers
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_time_limit_may_be_retried_on(server: Server, kind: str) -> None:
    go, runs = threading.Event(), list[int]()

    async def hang(ctx: Context) -> str:
        runs.append(ctx.tries)
        await asyncio.sleep(0 if ctx.tries == 3 else DEADLINE_S)
        return "in time"

    def block(ctx: Context) -> str:
        runs.append(ctx.tries)
        if ctx.tries < 3:
            go.wait(DEADLINE_S)
        return "in time"

    run = fastq.job(hang if kind == "async" else block, name="run", timeout=0.2)
    queue = Sight(server)
    async with working(server, run, retry_on=(TimeoutError,), **SOON) as (client, worker):
        job = await client.enqueue("run")
        assert await job.result(DEADLINE_S) == "in time"
        assert (runs, queue.tries_told(job.id)) == ([1, 2, 3], 3)
        # Threads cannot be ended: those of the first runs hold their slots still.
        assert len(worker._executor.running) == (0 if kind == "async" else 2)
        go.set()
        await eventually(lambda: not len(worker._executor.running))
    assert (queue.dead(), queue.length(), queue.pending()) == ([], 0, {})


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_time_limit_that_is_not_retried_on_is_final(server: Server, kind: str) -> None:
    go = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            raise Retry from None  # too late to ask

    def block() -> None:
        go.wait(DEADLINE_S)
        raise Retry

    run = fastq.job(hang if kind == "async" else block, name="run", timeout=0.1)
    async with working(server, run, add, retry_on=ConnectionError, **SOON) as (client, _):
        error = await failure(await client.enqueue("run"))
        go.set()
        assert await still_works(client)
    assert isinstance(error, JobTimeout)
    assert (error.reason, error.tries) == ("timeout", 1)
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"timeout"]
    assert Sight(server).deferred() == []


async def test_a_job_over_its_limit_too_often_is_dead_as_timeout(server: Server) -> None:
    @fastq.job(timeout=0.05, max_tries=2)
    async def hang() -> None:
        await asyncio.sleep(DEADLINE_S)

    async with working(server, hang, retry_on=TimeoutError, **SOON) as (client, _):
        error = await failure(await client.enqueue(hang))
    assert isinstance(error, JobTimeout)
    assert error.tries == 2


# What is told of it


async def test_hooks_are_told_that_a_job_runs_again(server: Server) -> None:
    told: list[tuple[int, str, str, str]] = []

    async def on_job_end(ctx: Context, outcome: Outcome) -> None:
        error = type(outcome.error).__name__
        told.append((ctx.tries, outcome.status, outcome.reason, error))

    flaky = Flaky(Retry(), OSError(), None)
    hooks = {"on_job_end": staticmethod(on_job_end), "retry_on": OSError, **SOON}
    async with working(server, flaky.run, **hooks) as (client, _):
        await (await client.enqueue("run")).result(DEADLINE_S)
        flaky.ends = (OSError(),)
        await failure(await client.options(max_tries=2).enqueue("run"))
    assert told == [
        (1, "deferred", "retry", "Retry"),
        (2, "deferred", "retry", "OSError"),
        (3, "complete", "", "NoneType"),
        (1, "deferred", "retry", "OSError"),
        (2, "failed", "retries", "OSError"),
    ]


async def test_the_log_says_what_follows(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fastq.executor")
    flaky = Flaky(Retry("busy", defer=0.25), OSError("no"), ValueError("odd"))
    async with working(server, flaky.run, retry_on=OSError, **SOON) as (client, _):
        job = await client.enqueue("run")
        await failure(job)
        flaky.ends = (Reject("not that"),)
        other = await client.options(job_id="mine").enqueue("run")
        await failure(other)
    said = [r.getMessage() for r in caplog.records if r.name == "fastq.executor"]
    who = f"run {job.id} in queue 'default'"
    assert said == [
        f"{who} runs again in 0.25 s, this was run 1: fastq.retries.Retry: busy",
        f"{who} runs again in 0.01 s, this was run 2: OSError: no",
        f"{who} ended badly (failed): ValueError: odd; ValueError is not in retry_on; "
        f"in dead as {job.id}",
        "run mine in queue 'default' ended badly (rejected): fastq.retries.Reject: not that; "
        "in dead as mine",
    ]
