"""Keys that something else has replaced, and servers that refuse half of an enqueueing.

No deferred job is lost, who asks is told what to do, and when it is mended all goes on.
"""

from collections.abc import Iterator
from typing import Any, cast

import pytest

import fastq
from fastq import Client, EnqueueError, ServerUnavailable
from retrying import AN_HOUR_S, Sight
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, failure, still_works, working

pytestmark = pytest.mark.faults

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
WHAT_TO_DO = (
    "A key of the queue is of another type: remove what uses its name, or name another queue."
)
EVERY_KEY = ", ".join(f"{{fastq:default}}:{key}" for key in ("stream", "deferred", "dead", "meta"))


class Runs:
    def __init__(self) -> None:
        self.values: list[Any] = []

    async def note(self, value: Any) -> Any:
        self.values.append(value)
        return value


async def add(x: int, y: int) -> int:
    return x + y


def refused(server: Server, why: str) -> str:
    return f"redis://127.0.0.1:{server.port}/0 refused the job: {why}"


@pytest.mark.servers
async def test_who_enqueues_is_told_of_a_deferred_set_of_another_type(server: Server) -> None:
    queue, run = Sight(server), Runs()
    queue.redis.set(f"{queue.base}:deferred", "something else")
    async with Client(server.url()) as client:
        text = refused(server, f"{WRONGTYPE}. {WHAT_TO_DO}")
        for producer in (client.options(defer_by=9), client.options(defer_by=9, job_id="mine")):
            with pytest.raises(EnqueueError) as caught:
                await producer.enqueue("note", 1)
            assert str(caught.value) == text
            with pytest.raises(EnqueueError) as caught:
                await producer.enqueue_many([fastq.call("note", 1), fastq.call("note", 2)])
            assert str(caught.value) == f"enqueue_many: call 0: {text} 0 jobs were enqueued."
        assert queue.keys() <= {f"{queue.base}:deferred", "fastq:queues"}
        # What is not deferred does not need it.
        mine = client.options(job_id="mine")
        job = await mine.enqueue("note", 3)
        assert ((await mine.enqueue("note", 4)).existing, await job.status()) == (True, "queued")
        with pytest.raises(ServerUnavailable, match=WRONGTYPE):
            await client.job("never-was").status()
        async with working(server, run.note):
            assert await job.result(DEADLINE_S) == 3
    assert queue.redis.get(f"{queue.base}:deferred") == b"something else"


@pytest.mark.servers
async def test_deferred_jobs_run_when_their_set_is_mended(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    queue, run = Sight(server), Runs()
    key, aside = f"{queue.base}:deferred", "aside"
    async with working(server, run.note, add) as (client, worker):
        jobs = [
            await client.options(job_id=job_id, defer_by=AN_HOUR_S).enqueue("note", job_id)
            for job_id in (None, "mine")
        ]
        queue.redis.rename(key, aside)
        queue.redis.lpush(key, "something else")
        queue.redis.publish(f"{queue.base}:control:0", "wake")
        said = f"The promoter was refused, trying again: {WRONGTYPE}"
        await eventually(lambda: said in caplog.text)
        assert f"One of {EVERY_KEY}" in caplog.text
        assert "is of another type" in caplog.text
        # All else goes on, and is not the leader's to give up.
        assert await still_works(client)
        assert worker._leader.leads
        with pytest.raises(ServerUnavailable):
            await jobs[0].status()
        queue.redis.rename(aside, key)
        queue.make_due(*(job.id for job in jobs))
        assert [await job.result(DEADLINE_S) for job in jobs] == [None, "mine"]
    assert run.values in ([None, "mine"], ["mine", None])
    assert caplog.text.count(said) == 1, "it complains once, not at each try"
    assert queue.is_settled()


@pytest.mark.servers
async def test_a_record_of_another_type_is_told_and_left_alone(server: Server) -> None:
    queue = Sight(server)
    async with Client(server.url()) as client:
        for value, why in (("list", f"{WRONGTYPE}."), ("text", NO_RECORD)):
            key = queue.record_key(value)
            if value == "list":
                queue.redis.lpush(key, "something else")
            else:
                queue.redis.set(key, "something else")
            dump = queue.redis.dump(key)
            for options in ({}, {"defer_by": 9}, {"expires": 9}):
                producer = client.options(job_id=value, **cast(Any, options))
                with pytest.raises(EnqueueError) as caught:
                    await producer.enqueue("note", 1)
                assert str(caught.value) == refused(server, f"{why} {WHAT_TO_DO}")
            assert queue.redis.dump(key) == dump
    assert (queue.length(), queue.deferred()) == (0, [])


NO_RECORD = "WRONGTYPE The key {fastq:default}:job:text holds no record of fastq."


@pytest.mark.servers
async def test_a_deferred_job_whose_record_is_spoilt_is_dead_and_holds_up_no_other(
    server: Server,
) -> None:
    queue, run = Sight(server), Runs()
    async with working(server, run.note) as (client, _):
        later = client.options(defer_by=AN_HOUR_S)
        ids = {}
        for how in ("list", "text", "gone", "well"):
            ids[how] = (await later.enqueue("note", how)).id
        key = {how: queue.record_key(job_id) for how, job_id in ids.items()}
        queue.redis.delete(*(key[how] for how in ("list", "gone")))
        queue.redis.lpush(key["list"], "something else")
        queue.redis.set(key["text"], "something else")
        queue.make_due(*ids.values())
        assert await client.job(ids["well"]).result(DEADLINE_S) == "well"
        whys = {}
        for how in ("list", "text", "gone"):
            error = await failure(client.job(ids[how]))
            assert (error.reason, error.tries) == ("undecodable", 0)
            whys[how] = error.message.removeprefix("The deferred job cannot be read: ")
        assert whys.pop("list").startswith(WRONGTYPE)
        assert whys == {"text": "its record is damaged", "gone": "its record is missing"}
        assert queue.redis.lrange(key["list"], 0, -1) == [b"something else"]
    assert sorted(entry["id"].decode() for entry in queue.dead()) == sorted(
        ids[how] for how in ("list", "text", "gone")
    )
    assert run.values == ["well"]
    assert queue.is_settled()


# What is refused half-way

USER = "producer"


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    """Of a user from whom something can be taken."""
    set_user(server, "reset on nopass allkeys allchannels +@all")
    yield f"redis://{USER}:any@127.0.0.1:{server.port}/0"
    cast(Any, server.client()).execute_command("ACL", "DELUSER", USER)


def set_user(server: Server, rules: str) -> None:
    cast(Any, server.client()).execute_command("ACL", "SETUSER", USER, *rules.split())


@pytest.mark.servers
@pytest.mark.parametrize("rules", ["-set", "-xadd -zadd", "-get", "-evalsha"])
async def test_what_is_refused_half_way_leaves_nothing(
    server: Server, url: str, rules: str
) -> None:
    queue = Sight(server)
    async with Client(url, connect_timeout=1) as client:
        await client.options(job_id="first").enqueue("note", 0)
        await eventually(lambda: "fastq:queues" in queue.keys())  # noqa: SIM118
        before = queue.keys(), queue.entries()
        set_user(server, rules)
        for options in ({"job_id": "mine"}, {"defer_by": 9}, {"job_id": "late", "defer_by": 9}):
            with pytest.raises(EnqueueError, match="refused the job") as caught:
                await client.options(**cast(Any, options)).enqueue("note", 1)
            assert "Let the user's ACL allow" in str(caught.value)
        assert (queue.keys(), queue.entries()) == before
        set_user(server, "+@all")
        job = await client.options(job_id="mine").enqueue("note", 1)
        assert (job.existing, await job.status()) == (False, "queued")


@pytest.mark.servers
async def test_a_wake_that_is_refused_stops_no_job(server: Server, url: str) -> None:
    queue, run = Sight(server), Runs()
    set_user(server, "-publish")
    async with Client(url) as client, working(server, run.note):
        job = await client.options(job_id="mine", defer_by=0.01).enqueue("note", 1)
        assert await job.result(DEADLINE_S) == 1
    assert queue.is_settled()
