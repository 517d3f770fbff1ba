"""Servers that refuse half of what ends a run: the job stays where it was, then goes on, once."""

from collections.abc import Iterator

import pytest

import fastq
from restrained import Permissions, full, permissions
from retrying import AN_HOUR_S, ENDS, LOST, Held, Sight, take_over
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, failure, working

pytestmark = pytest.mark.faults

# What is taken from the user, what gives it back, and the ends that may need it.
BY_KEY = "resetkeys ~fastq:* ~{fastq:default}:"
REFUSALS: dict[str, tuple[str, str, list[str]]] = {
    "set": ("-set", "+set", ["badly", "later", "at once"]),
    "xadd": ("-xadd", "+xadd", ["badly", "at once"]),
    "zadd": ("-zadd", "+zadd", ["later"]),
    "hset": ("-hset", "+hset", ["later"]),
    "del": ("-del", "+del", ["badly", "at once"]),
    "publish": ("-publish", "+publish", ["later"]),
    "dead": (BY_KEY + "[!d]* ~{fastq:default}:deferred", "allkeys", ["badly"]),
    "deferred": (BY_KEY + "[!d]* ~{fastq:default}:dead", "allkeys", ["later"]),
    "records": (BY_KEY + "[!j]*", "allkeys", ["badly", "later"]),
}
CASES = [(what, end) for what, (_, _, ends) in REFUSALS.items() for end in ends]


@pytest.fixture
def user(server: Server) -> Iterator[Permissions]:
    with permissions(server) as user:
        yield user


def own(name: str) -> str | None:
    """Half of the jobs have an id of their own."""
    return name if "own" in name else None


@pytest.mark.servers
async def test_a_full_server_takes_retries_and_dead_jobs(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Sight(server)
    runs = {
        f"{end} {who}": Held(error) for end, error in ENDS.items() if error for who in ("", "own")
    }

    async def run(name: str) -> str:
        return await runs[name].run()

    async with working(server, run, keep_dead=(1, None)) as (client, _):
        jobs = {n: await client.options(job_id=own(n)).enqueue(run, n) for n in runs}
        late = await client.options(defer_by=AN_HOUR_S).enqueue(run, "nobody")
        queue.change(late.id, "x", "1")
        await eventually(lambda: all(one.runs for one in runs.values()))
        with full(server):
            for one in runs.values():
                one.go.set()
            for name, job in jobs.items():
                if "badly" in name:
                    assert (await failure(job)).reason == "failed"
                else:
                    assert await job.result(DEADLINE_S) == "second"
            # By hand this is refused now.
            queue.redis.eval(_MAKE_DUE, 2, "none", f"{queue.base}:deferred", late.id)
            assert (await failure(late)).reason == "expired"
            await eventually(queue.is_settled)
    assert {n: one.runs for n, one in runs.items()} == {n: 1 + ("badly" not in n) for n in runs}
    assert [dead["reason"] for dead in queue.dead()] == [b"expired"]
    assert queue.redis.hget(f"{queue.base}:meta", "dead_dropped") == b"2"
    assert "sent again" not in caplog.text


_MAKE_DUE = "redis.call('DEL', KEYS[1]) return redis.call('ZADD', KEYS[2], 1, ARGV[1])"


@pytest.mark.servers
@pytest.mark.parametrize(("what", "end"), CASES, ids=[f"{w}-{e}" for w, e in CASES])
async def test_what_an_acl_refuses_goes_on_when_it_is_mended(
    server: Server, user: Permissions, what: str, end: str
) -> None:
    queue, runs = Sight(server), {"": Held(ENDS[end]), "own": Held(ENDS[end])}
    take, give_back, _ = REFUSALS[what]

    async def run(name: str) -> str:
        return await runs[name].run()

    async with working(server, run, redis=user.url) as (client, worker):
        jobs = [await client.options(job_id=own(name)).enqueue(run, name) for name in runs]
        await eventually(lambda: all(one.runs for one in runs.values()))
        entries = queue.pending()
        user.set(take)
        for one in runs.values():
            one.go.set()
        settler = worker._settler
        # Either it needs nothing of that, or it is said again and again.
        await eventually(lambda: settler._backoff.failures >= 3 or queue.is_settled())
        await eventually(lambda: queue.length() == len(queue.pending()))
        assert len(queue.pending().keys() | queue.deferred()) <= 2
        assert what not in ("xadd", "zadd", "dead") or queue.pending() == entries
        user.set(give_back)
        for job in jobs:
            if end == "badly":
                assert (await failure(job)).message == "zombie"
            else:
                assert await job.result(DEADLINE_S) == "second"
        await eventually(lambda: queue.is_settled() and not settler.unanswered)
    assert [one.runs for one in runs.values()] == [1 if end == "badly" else 2] * 2
    dead = [entry["id"].decode() for entry in queue.dead()]
    assert sorted(dead) == (sorted(job.id for job in jobs) if end == "badly" else [])


@pytest.mark.servers
@pytest.mark.parametrize("job_id", [None, "mine"])
@pytest.mark.parametrize("end", ["later", "at once"])
async def test_a_retry_refused_half_way_leaves_nothing_in_the_way_of_another_worker(
    server: Server,
    user: Permissions,
    job_id: str | None,
    end: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queue, zombie = Sight(server), Held(ENDS[end])

    async def well() -> str:
        return "first"

    async with working(server, zombie.run, redis=user.url) as (client, worker):
        job = await client.options(job_id=job_id).enqueue("run")
        await eventually(lambda: zombie.runs)
        user.set("-zadd" if end == "later" else "-xadd")
        zombie.go.set()
        await eventually(lambda: worker._settler._backoff.failures)
        async with working(server, fastq.job(well, name="run")) as (_, other):
            await take_over(queue, job.id, other)
            assert await job.result(DEADLINE_S) == "first"
        user.set("+@all")
        await eventually(lambda: not worker._settler.unanswered)
        assert (zombie.runs, await job.result(DEADLINE_S)) == (1, "first")
    assert LOST in caplog.text
    assert queue.is_settled()
    assert queue.record(job.id).get(":nonce", b"") != b"" or job_id is None


@pytest.mark.servers
async def test_what_expires_while_it_is_deferred_stays_until_dead_can_take_it(
    server: Server, user: Permissions, caplog: pytest.LogCaptureFixture
) -> None:
    queue = Sight(server)

    async def run(text: str) -> None: ...

    async with working(server, run, redis=user.url) as (client, _):
        job = await client.options(job_id="mine", defer_by=AN_HOUR_S).enqueue(run, "kept")
        before = queue.record("mine")
        user.set(REFUSALS["dead"][0])
        queue.change("mine", "x", "1")
        queue.make_due("mine")
        await eventually(lambda: "promoter was refused" in caplog.text)
        assert queue.record("mine") == {**before, "x": b"1"}
        assert (queue.deferred(), queue.dead()) == (["mine"], [])
        user.set("allkeys")
        assert (await failure(job)).reason == "expired"
    (dead,) = queue.dead()
    assert (dead["reason"], dead["d"]) == (b"expired", b'["kept"]')
    assert queue.is_settled()


@pytest.mark.servers
async def test_what_cannot_be_promoted_goes_on_when_it_is_mended(
    server: Server, user: Permissions, caplog: pytest.LogCaptureFixture
) -> None:
    queue, runs = Sight(server), list[str]()

    async def run(text: str) -> str:
        runs.append(text)
        return text

    async with working(server, run, redis=user.url) as (client, _):
        for name in ("xadd", "set"):
            caplog.clear()
            job = await client.options(job_id=name, defer_by=AN_HOUR_S).enqueue(run, name)
            # One record is set, or many at once.
            user.set("-xadd" if name == "xadd" else "-set -mset")
            queue.make_due(name)
            await eventually(lambda: "promoter was refused" in caplog.text)
            # Why, in the words of the server.
            assert any(why in caplog.text for why in ("permission", "can't run this command"))
            assert (queue.deferred(), queue.length()) == ([name], 0)
            user.set("+@all")
            assert await job.result(DEADLINE_S) == name
        await eventually(queue.is_settled)
    assert runs == ["xadd", "set"]
