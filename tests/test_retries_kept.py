"""What stays the same from run to run of a job that is retried, and what is left at the end."""

import asyncio
import re
from typing import Any, cast

import pytest

import fastq
from fastq import Client, Context, Retry
from retrying import AN_HOUR_S, SOON, Flaky, Sight
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, failure, settings_of, working


@pytest.mark.servers
async def test_who_waits_since_before_the_first_run_gets_the_result_of_the_last(
    server: Server,
) -> None:
    flaky = Flaky(Retry(defer=0.05), Retry(defer=0), OSError(), None)
    settings = settings_of(server, flaky.run, retry_on=OSError, **SOON)
    async with Client.from_settings(settings) as client:
        job = await client.enqueue("run")
        assert re.fullmatch(r"\d+-\d+", job.id)
        waiting = asyncio.ensure_future(job.result(DEADLINE_S))
        await eventually(lambda: bool(client._results._waits) and not client._results.trouble)
        async with working(server, flaky.run, retry_on=OSError, **SOON):
            assert await waiting == [1, 2, 3, 4]
            assert await job.status() == "complete"
            assert await job.result(DEADLINE_S) == [1, 2, 3, 4]


@pytest.mark.servers
async def test_a_job_keeps_its_id_and_the_time_of_its_enqueueing(server: Server) -> None:
    seen: list[tuple[str, Any]] = []

    async def again(ctx: Context) -> None:
        seen.append((ctx.job_id, ctx.enqueued_at))
        if ctx.tries < 3:
            raise Retry(defer=0.02 if ctx.tries == 1 else 0)

    async with working(server, again) as (client, _):
        for options in ({}, {"job_id": "mine"}, {"job_id": "late", "defer_by": 0.05},
                        {"defer_by": 0.05}, {"expires": 60}):  # fmt: skip
            seen.clear()
            job = await client.options(**cast(Any, options)).enqueue(again)
            await job.result(DEADLINE_S)
            assert len(seen) == 3
            assert {job_id for job_id, _ in seen} == {job.id}
            assert len({at for _, at in seen}) == 1


@pytest.mark.servers
async def test_an_own_id_is_taken_while_its_retry_waits(server: Server) -> None:
    queue = Sight(server)

    async def again(ctx: Context) -> str:
        if ctx.tries == 1:
            raise Retry(defer=AN_HOUR_S)
        return "second"

    async with working(server, again) as (client, _):
        producer = client.options(job_id="mine")
        job = await producer.enqueue(again)
        await eventually(lambda: queue.deferred() and not queue.pending())
        other = await producer.enqueue(again)
        assert (other.existing, await other.status()) == (True, "deferred")
        queue.make_due("mine")
        assert await other.result(DEADLINE_S) == await job.result(DEADLINE_S) == "second"
        assert not (await producer.enqueue(again)).existing


@pytest.mark.servers
@pytest.mark.parametrize("defer", [0.02, 0], ids=["deferred", "at once"])
async def test_all_that_an_entry_carries_is_carried_on(server: Server, defer: float) -> None:
    queue = Sight(server)
    expires = str(queue.now_ms() + AN_HOUR_S * 1000)
    carried = {
        "f": "run",
        "d": b"[]",
        "o": '{"max_tries":3,"timeout":20,"colour":"red"}',
        "k": "55000",
        "x": expires,
        "zz": b"\x00\xff",
    }
    flaky = Flaky(Retry(defer=defer))
    async with working(server, flaky.run) as (client, _):
        # A newer version's field may be of any name; the record's own must not be overwritten.
        job_id = queue.add(**carried, **{":entry": "9-9", ":done": "1"})
        error = await failure(client.job(job_id))
    assert (error.reason, error.tries, flaky.tries) == ("retries", 3, [1, 2, 3])
    (dead,) = queue.dead()
    expected = {name: v.encode() if isinstance(v, str) else v for name, v in carried.items()}
    assert expected.items() <= dead.items()
    assert dead["e"] == job_id.partition("-")[0].encode()
    assert 0 < queue.result_ttl_ms(job_id) <= 55_000


@pytest.mark.servers
async def test_what_is_enqueued_from_inside_a_run_that_is_retried_is_dropped(
    server: Server,
) -> None:
    flaky = Flaky(Retry(defer=0.05), Retry(defer=0), None)

    async def again(ctx: Context) -> list[int]:
        if ctx.tries < 3:
            job = await ctx.client.options(job_id="mine").enqueue("again")
            assert not job.existing
        return await flaky.run(ctx)

    async with working(server, again) as (client, _):
        job = await client.options(job_id="mine").enqueue(again)
        assert await job.result(DEADLINE_S) == [1, 2, 3]
        assert await job.status() == "complete"
    assert Sight(server).is_settled()


async def test_a_retry_that_waits_past_its_expiry_has_expired(server: Server) -> None:
    flaky = Flaky(Retry(defer=2.1))
    queue = Sight(server)
    async with working(server, flaky.run) as (client, _):
        jobs = [await client.options(expires=2, job_id=i).enqueue("run") for i in (None, "mine")]
        await eventually(lambda: len(queue.deferred()) == 2)
        for job in jobs:
            with pytest.raises(fastq.JobExpired) as caught:
                await job.result(DEADLINE_S)
            assert (caught.value.tries, await job.status()) == (1, "expired")
    assert flaky.tries == [1, 1]
    told = {(e["id"].decode(), e["reason"], e["tries"], e["f"]) for e in queue.dead()}
    assert told == {(job.id, b"expired", b"1", b"run") for job in jobs}


# What is left


@pytest.mark.servers
@pytest.mark.parametrize("end", [None, ValueError("no")], ids=["well", "badly"])
async def test_nothing_is_left_of_retries_but_results_and_dead(
    server: Server, end: BaseException | None
) -> None:
    queue, flaky = Sight(server), Flaky(Retry(defer=0.02), Retry(defer=0), end)
    ids: dict[str, set[str]] = {"kept": set(), "own": set()}
    async with working(server, flaky.run) as (client, _):
        for job_id in (None, "own", "unkept"):
            for keep_s in (60, 0):
                own = job_id and f"{job_id}-{keep_s}"
                flaky.again()
                job = await client.options(job_id=own, keep_result=keep_s).enqueue("run")
                await eventually(lambda: len(flaky.tries) == 3 and queue.is_settled(), DEADLINE_S)
                if keep_s:
                    ids["kept"].add(job.id)
                if own:
                    ids["own"].add(job.id)
    results = {f"{queue.base}:result:{job_id}" for job_id in ids["kept"]}
    # Own ids are remembered for a minute, in case their enqueueing is sent once more.
    records = {f"{queue.base}:job:{job_id}" for job_id in ids["own"]}
    dead = {f"{queue.base}:dead"} if end else set()
    assert queue.keys() == {"fastq:queues", queue.stream} | dead | results | records
    assert all(0 < cast(int, queue.redis.pttl(key)) <= 60_000 for key in results | records)
    assert len(queue.dead()) == (6 if end else 0)


# Unknown functions


@pytest.mark.servers
async def test_a_job_that_nobody_knows_goes_round_uncounted_until_somebody_does(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastq.outcome._UNKNOWN_DELAYS_S", (AN_HOUR_S,) * 4)
    queue, seen = Sight(server), list[tuple[str, int]]()

    async def run(ctx: Context) -> None:
        seen.append((ctx.job_id, ctx.tries))
        if ctx.tries == 1:
            raise Retry(defer=0)

    async with working(server, other) as (client, _):
        jobs = [await client.enqueue("run"), await client.options(job_id="mine").enqueue("run")]
        await eventually(lambda: len(queue.deferred()) == 2)
        assert [await job.status() for job in jobs] == ["deferred"] * 2
        assert [(queue.record(job.id)["u"], queue.record(job.id)["t"]) for job in jobs] == [
            (b"1", b"0")
        ] * 2
    queue.make_due(*(job.id for job in jobs))
    async with working(server, run) as (client, _):
        for job in jobs:
            await client.job(job.id).result(DEADLINE_S)
            assert queue.tries_told(job.id) == 2
    assert sorted(seen) == sorted((job.id, tries) for job in jobs for tries in (1, 2))
    assert queue.is_settled()


@pytest.mark.servers
async def test_a_job_that_nobody_ever_knows_is_dead_after_a_few_rounds(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fastq.executor")
    queue = Sight(server)
    async with working(server, other, max_tries=1) as (client, _):
        # As if a run of it had asked for another before its function was taken away.
        counted = queue.add(f="run", d="[]", t="1", k="60000")
        for job_id, tries in ((counted, 1), ((await client.enqueue("run")).id, 0)):
            error = await failure(client.job(job_id))
            assert (error.reason, error.tries) == ("unknown_function", tries)
            (dead,) = [dead for dead in queue.dead() if dead["id"].decode() == job_id]
            assert (dead["tries"], "u" in dead) == (b"%d" % tries, False)
            rounds = [r for r in caplog.records if f"{job_id} in queue 'default' runs" in r.message]
            assert len(rounds) == 4
    assert queue.is_settled()


async def other() -> None: ...
