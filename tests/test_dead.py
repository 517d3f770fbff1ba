"""Dead jobs: whatever ends badly is kept whole, told of, and capped by a count that is exact."""

import asyncio
from typing import Any, cast

import msgspec
import pytest

import fastq
from fastq import Client, Job, JobFailed, Reject, Retry
from fastq.outcome import Envelope, ErrorText
from retrying import AN_HOUR_S, Sight
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, failure, working

# What an entry needs to run; what else a dead one has says how it ended.
ENTRY = ("f", "d", "o", "k")


async def fail(text: str) -> None:
    raise LookupError(text)


async def again(text: str) -> None:
    raise Retry(text, defer=0)


async def refuse(text: str) -> None:
    raise Reject(text)


async def hang(text: str) -> None:
    await asyncio.sleep(DEADLINE_S)


async def late(text: str) -> None: ...


async def shape() -> None: ...


async def ok(text: str) -> str:
    return text


BAD = [fail, again, refuse, hang, late, shape]
# Reason -> function, status, type of its error, tries, options beside those that all have.
REASONS: dict[str, tuple[str, str, str, int, dict[str, Any]]] = {
    "failed": ("fail", "failed", "LookupError", 1, {}),
    "retries": ("again", "failed", "fastq.retries.Retry", 2, {"max_tries": 2}),
    "rejected": ("refuse", "failed", "fastq.retries.Reject", 1, {}),
    "timeout": ("hang", "failed", "TimeoutError", 1, {"timeout": 0.1}),
    "expired": ("late", "expired", "fastq.errors.JobExpired", 0, {"expires": 0.001}),
    "arguments": ("shape", "failed", "fastq.decoders.ArgumentsError", 1, {}),
    "unknown_function": ("nobody", "failed", "LookupError", 0, {}),
}


def check(queue: Sight, job: Job[Any], error: JobFailed, reason: str) -> dict[str, bytes]:
    """What is in dead, and that the stored outcome says the same."""
    _, status, kind, tries, _ = REASONS[reason]
    (dead,) = [dead for dead in queue.dead() if dead["id"].decode() == job.id]
    assert (error.reason, error.type, error.tries) == (reason, kind, tries)
    assert (dead["reason"], dead["tries"]) == (reason.encode(), b"%d" % tries)
    text = msgspec.json.decode(dead["error"], type=ErrorText)
    assert text == ErrorText(error.type, error.message, error.traceback)
    told = Envelope.unpack(queue.result(job.id) or b"")
    assert (told.status, told.reason, told.tries, told.body) == (
        *(status, reason, tries),
        dead["error"],
    )
    assert 0 < queue.result_ttl_ms(job.id) <= 50_000
    return dead


def requeue(queue: Sight, dead: dict[str, bytes]) -> str:
    """By hand: the new job's id."""
    return queue.add(**{name: dead[name] for name in ENTRY if name in dead})


@pytest.mark.servers
async def test_whatever_ends_badly_is_kept_with_all_that_it_takes_to_run_it_again(
    server: Server,
) -> None:
    queue, jobs = Sight(server), dict[str, tuple[str, Job[Any]]]()
    async with Client(server.url()) as client:
        for reason, (name, *_, options) in REASONS.items():
            for own in (None, f"own {reason}"):
                producer = client.options(job_id=own, keep_result=50, **options)
                text = f"{own or reason}: ä"
                jobs[text] = reason, await producer.enqueue(name, text)
        began_ms = queue.now_ms()
        await eventually(lambda: queue.now_ms() > began_ms + 100)  # one is to expire
        found = dict[str, dict[str, bytes]]()
        async with working(server, *BAD) as (_, worker):
            for text, (reason, job) in jobs.items():
                dead = found[text] = check(queue, job, await failure(job), reason)
                assert msgspec.json.decode(dead["d"]) == [text]
                assert (dead["f"].decode(), dead["k"]) == (REASONS[reason][0], b"50000")
                assert await job.status() == REASONS[reason][1]
    assert worker.failed == len(jobs) == len(queue.dead())
    assert queue.is_settled()
    mended = [fastq.job(ok, name=row[0]) for row in REASONS.values()]
    async with working(server, *mended) as (client, _):
        for text, dead in found.items():
            assert await client.job(requeue(queue, dead)).result(DEADLINE_S) == text


@pytest.mark.servers
async def test_a_job_that_expires_while_it_is_deferred_is_kept_too(server: Server) -> None:
    queue = Sight(server)
    async with working(server, late) as (client, _):
        producer = client.options(defer_by=AN_HOUR_S, keep_result=50, max_tries=4)
        for job in [await producer.enqueue(late, "ä"),
                    await client.options(job_id="own", defer_by=AN_HOUR_S, keep_result=50,
                                         max_tries=4).enqueue(late, "ä")]:  # fmt: skip
            queue.change(job.id, "x", "1")
            queue.make_due(job.id)
            dead = check(queue, job, await failure(job), "expired")
            assert (dead["f"], dead["d"], dead["o"], dead["x"], dead["k"]) == (
                *(b"late", '["ä"]'.encode(), b'{"max_tries":4}', b"1", b"50000"),
            )
            assert queue.record(job.id).keys() <= {":nonce", ":since"}
    assert queue.is_settled()
    async with working(server, fastq.job(ok, name="late")) as (client, _):
        again_ids = [requeue(queue, dead) for dead in queue.dead()]
        assert [await client.job(i).result(DEADLINE_S) for i in again_ids] == ["ä"] * 2


@pytest.mark.servers
async def test_a_payload_of_another_serializer_is_kept_byte_by_byte(server: Server) -> None:
    queue, value = Sight(server), "\x00\xff\r\n" * 100
    async with (
        working(server, ok) as (client, _),
        Client(server.url(), serializer="pickle") as other,
    ):
        for own in (None, "own"):
            job = await other.options(job_id=own, max_tries=3).enqueue(ok, value)
            error = await failure(client.job(job.id))
            (dead,) = [dead for dead in queue.dead() if dead["id"].decode() == job.id]
            assert dead["reason"] == b"undecodable" == error.reason.encode()
            assert (dead["o"], dead["tries"]) == (b'{"max_tries":3}', b"1")
    async with working(server, ok, serializer="pickle") as (client, _):
        for dead in queue.dead():
            assert await client.job(requeue(queue, dead)).result(DEADLINE_S) == value


@pytest.mark.servers
@pytest.mark.parametrize("end", ["well", "badly", "again"])
async def test_a_run_that_another_has_superseded_is_kept_and_changes_nothing(
    server: Server, end: str
) -> None:
    queue, go, runs = Sight(server), asyncio.Event(), list[str]()

    async def run(text: str) -> str:
        runs.append(text)
        await go.wait()
        if end == "badly":
            raise ValueError(text)
        if end == "again":
            raise Retry(defer=0.01)
        return text

    async with working(server, run) as (client, _):
        job = await client.options(job_id="mine", max_tries=7, keep_result=50).enqueue(run, "ä")
        await eventually(lambda: runs)
        # Somebody has deleted its record, and it was enqueued anew: that one counts.
        queue.change("mine", ":entry", "1-1")
        go.set()
        (dead,) = await eventually(queue.dead)
        assert (dead["id"], dead["reason"], dead["error"]) == (b"mine", b"superseded", b"")
        assert [dead[name] for name in ENTRY] == [
            *(b"run", '["ä"]'.encode(), b'{"max_tries":7}', b"50000"),
        ]
        assert queue.result(job.id) is None
        assert queue.record(job.id)[":entry"] == b"1-1"
        await eventually(queue.is_settled)
    assert runs == ["ä"]
    async with working(server, fastq.job(ok, name="run")) as (client, _):
        assert await client.job(requeue(queue, dead)).result(DEADLINE_S) == "ä"


# What the cap drops


def dropped(queue: Sight) -> int:
    return int(cast("bytes | None", queue.redis.hget(f"{queue.base}:meta", "dead_dropped")) or 0)


@pytest.mark.servers
async def test_the_oldest_are_dropped_and_counted_exactly(server: Server) -> None:
    queue, ids = Sight(server), list[str]()
    async with working(server, fail, late, keep_dead=(10, None)) as (client, _):
        for number in range(25):
            own = client.options(job_id=f"own {number}" if number % 2 else None)
            job = await own.enqueue(fail, str(number))
            await failure(job)
            ids.append(job.id)
            kept = [dead["id"].decode() for dead in queue.dead()]
            assert kept == ids[-10:]
            assert dropped(queue) == max(0, len(ids) - 10)
        # By the promoter, too.
        job = await client.options(defer_by=AN_HOUR_S).enqueue(late, "")
        queue.change(job.id, "x", "1")
        queue.make_due(job.id)
        await failure(job)
    assert [dead["id"].decode() for dead in queue.dead()] == [*ids[-9:], job.id]
    assert dropped(queue) == 16


@pytest.mark.servers
async def test_the_count_is_exact_while_many_fail_at_once(server: Server) -> None:
    queue = Sight(server)
    async with Client(server.url()) as client:
        calls = (
            fastq.call(fail, str(n)).options(job_id=f"own {n}" if n % 2 else None)
            for n in range(100)
        )
        jobs = await client.enqueue_many(calls)
        settings: dict[str, Any] = {"keep_dead": (10, None), "max_jobs": 20}
        async with working(server, fail, **settings), working(server, fail, **settings):
            assert {(await failure(job)).reason for job in jobs} == {"failed"}
            await eventually(queue.is_settled)
    kept = {dead["id"].decode() for dead in queue.dead()}
    assert (len(queue.dead()), len(kept), dropped(queue)) == (10, 10, 90)
    assert kept <= {job.id for job in jobs}


async def test_nothing_is_dropped_without_need(server: Server) -> None:
    queue = Sight(server)
    async with working(server, fail, keep_dead=(3, AN_HOUR_S)) as (client, _):
        for _ in range(3):
            await failure(await client.enqueue(fail, ""))
    assert len(queue.dead()) == 3
    assert not queue.redis.exists(f"{queue.base}:meta")


@pytest.mark.servers
async def test_those_too_old_are_dropped_when_another_is_buried(server: Server) -> None:
    queue = Sight(server)
    async with working(server, fail, keep_dead=(1_000, 0.3)) as (client, _):
        for _ in range(3):
            await failure(await client.enqueue(fail, ""))
        before = dropped(queue)
        last_ms = queue.now_ms()
        await eventually(lambda: queue.now_ms() > last_ms + 301)
        job = await client.enqueue(fail, "")
        await failure(job)
    assert [dead["id"].decode() for dead in queue.dead()] == [job.id]
    assert (before < 3, dropped(queue)) == (True, 3)


@pytest.mark.servers
@pytest.mark.parametrize(
    ("keep_dead", "left"), [((1_000, 0.1), 0), ((2, None), 2)], ids=["old", "many"]
)
async def test_the_janitor_drops_them_where_none_is_buried_any_more(
    server: Server, keep_dead: Any, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Sight(server)
    async with working(server, fail) as (client, _):
        ids = [(await client.enqueue(fail, "")).id for _ in range(5)]
        for job_id in ids:
            await failure(client.job(job_id))
    kept = [dead["id"].decode() for dead in queue.dead()]
    last_ms = queue.now_ms()
    await eventually(lambda: queue.now_ms() > last_ms + 101)
    async with working(server, fail, keep_dead=keep_dead):
        await eventually(lambda: len(queue.dead()) == left and dropped(queue) == 5 - left)
        text = (
            f"{5 - left} jobs of queue 'default' that ended badly were dropped: "
            "keep_dead keeps no more"
        )
        await eventually(lambda: text in caplog.text)
    assert [dead["id"].decode() for dead in queue.dead()] == kept[5 - left :]
