"""A job that enqueues its own id from inside itself: it runs again when this run has ended.

However that ends, and wherever in it that was said; this run then keeps no result.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

import fastq
from fastq import Client, ConfigError, Context, Job, Reject, Retry
from retrying import AN_HOUR_S, Sight
from servers import Server
from stage import Jobs
from waiting import eventually
from workers import DEADLINE_S, working

FIRST, NEXT = "first", "next"


class Self:
    """A job whose first runs each do as they are told; one with `next` as its argument only ends.

    `said`: whether each enqueueing found the job there.
    """

    def __init__(self, *lives: Callable[[Context], Awaitable[Any]]) -> None:
        self.lives = list(lives)
        self.ran: list[tuple[str, int]] = []
        self.said: list[bool] = []

    async def run(self, ctx: Context, which: str) -> Any:
        self.ran.append((which, ctx.tries))
        if which != FIRST or not self.lives:
            return which
        return await self.lives.pop(0)(ctx)

    async def anew(self, ctx: Context, which: str = NEXT, **options: Any) -> Job[Any]:
        job = await ctx.client.options(job_id=ctx.job_id, **options).enqueue("run", which)
        self.said.append(job.existing)
        return job


def only_memory(queue: Sight) -> bool:
    """Nothing is left of records but the memory of those that have just ended."""
    records = [key for key in queue.keys() if key.startswith(queue.record_key(""))]  # noqa: SIM118
    return queue.is_settled() and all(0 < ttl_ms(queue, key) <= 60_000 for key in records)


def ttl_ms(queue: Sight, key: str) -> int:
    return cast(int, queue.redis.pttl(key))


async def start(client: Client, **options: Any) -> Job[Any]:
    return await client.options(**{"job_id": "mine", **options}).enqueue("run", FIRST)


# How the run ends

ENDS: dict[str, tuple[BaseException | None, list[bytes]]] = {
    "returns": (None, []),
    "fails": (ValueError("no"), [b"failed"]),
    "is cancelled": (asyncio.CancelledError(), [b"failed"]),
    "rejects": (Reject("no"), [b"rejected"]),
    "has no tries left": (Retry(defer=0), [b"retries"]),
}


@pytest.mark.servers
@pytest.mark.parametrize("defer_by", [None, 0.02], ids=["at once", "deferred"])
@pytest.mark.parametrize("end", ENDS)
async def test_it_runs_again_however_its_run_ends(
    server: Server, end: str, defer_by: float | None
) -> None:
    queue, (error, reasons) = Sight(server), ENDS[end]

    async def life(ctx: Context) -> str:
        await job.anew(ctx, defer_by=defer_by)
        assert (queue.length(), queue.deferred()) == (1, []), "not before this run has ended"
        if error is not None:
            raise error
        return "of the first run"

    job = Self(life)
    async with working(server, job.run) as (client, _):
        handle = await start(client, max_tries=1)
        # Whoever waits since before the first run hears of the second.
        assert await handle.result(DEADLINE_S) == NEXT
        assert await handle.status() == "complete"
        await eventually(lambda: only_memory(queue))
    assert (job.ran, job.said) == ([(FIRST, 1), (NEXT, 1)], [False])
    assert [entry["reason"] for entry in queue.dead()] == reasons


@pytest.mark.servers
async def test_it_runs_again_after_it_took_too_long(server: Server) -> None:
    queue = Sight(server)

    async def life(ctx: Context) -> None:
        await job.anew(ctx)
        await asyncio.sleep(DEADLINE_S)

    job = Self(life)
    async with working(server, job.run) as (client, _):
        handle = await start(client, timeout=0.05)
        assert await handle.result(DEADLINE_S) == NEXT
    assert [entry["reason"] for entry in queue.dead()] == [b"timeout"]
    assert only_memory(queue)


@pytest.mark.servers
@pytest.mark.parametrize("error", [None, ValueError("no")], ids=["well", "badly"])
async def test_a_run_that_has_a_next_keeps_no_result(
    server: Server, error: BaseException | None
) -> None:
    queue = Sight(server)

    async def life(ctx: Context) -> str:
        await job.anew(ctx, defer_by=AN_HOUR_S, keep_result=None)
        if error is not None:
            raise error
        return "of the first run"

    job = Self(life)
    async with working(server, job.run) as (client, _):
        handle = await start(client, keep_result=None)
        await eventually(lambda: queue.deferred() == ["mine"])
        assert (await handle.status(), queue.result("mine")) == ("deferred", None)
        assert 0 < (queue.due_ms("mine") or 0) - queue.now_ms() <= AN_HOUR_S * 1000
        # It is as any other that waits.
        assert (await start(client)).existing
        queue.make_due("mine")
        assert await handle.result(DEADLINE_S) == NEXT
    assert queue.result_ttl_ms("mine") == -1


@pytest.mark.servers
async def test_a_run_that_is_retried_has_to_say_it_again(server: Server) -> None:
    queue = Sight(server)

    async def says_it(ctx: Context) -> None:
        await job.anew(ctx, f"{NEXT} after {ctx.tries}")
        raise Retry(defer=0.01 if ctx.tries == 1 else 0)

    async def says_nothing(ctx: Context) -> str:
        return "the last"

    async def says_it_and_ends(ctx: Context) -> None:
        await job.anew(ctx, f"{NEXT} after {ctx.tries}")

    for last, result in ((says_nothing, "the last"), (says_it_and_ends, f"{NEXT} after 3")):
        job = Self(says_it, says_it, last)
        async with working(server, job.run) as (client, _):
            assert await (await start(client)).result(DEADLINE_S) == result
            await eventually(lambda: only_memory(queue))
        assert job.ran[:3] == [(FIRST, 1), (FIRST, 2), (FIRST, 3)]
        assert job.ran[3:] == ([] if last is says_nothing else [(result, 1)])
        assert not any(job.said)


# How it is said


@pytest.mark.servers
async def test_of_several_times_the_first_counts(server: Server) -> None:
    async def life(ctx: Context) -> None:
        assert (await job.anew(ctx, "a")).id == "mine"
        await job.anew(ctx, "b", defer_by=AN_HOUR_S)
        many = [fastq.call("run", which).options(job_id="mine") for which in ("c", "d")]
        job.said += [handle.existing for handle in await ctx.client.enqueue_many(many)]

    job = Self(life)
    async with working(server, job.run) as (client, _):
        assert await (await start(client)).result(DEADLINE_S) == "a"
    assert (job.ran, job.said) == ([(FIRST, 1), ("a", 1)], [False, True, True, True])
    assert only_memory(Sight(server))


@pytest.mark.servers
async def test_each_run_may_say_it_again(server: Server) -> None:
    async def life(ctx: Context) -> None:
        await job.anew(ctx, FIRST if job.lives else NEXT, defer_by=0.001 * (len(job.lives) % 2))

    job = Self(*[life] * 20)
    async with working(server, job.run) as (client, _):
        assert await (await start(client)).result(DEADLINE_S) == NEXT
    assert job.ran == [(FIRST, 1)] * 20 + [(NEXT, 1)]
    assert only_memory(Sight(server))


@pytest.mark.servers
async def test_a_job_whose_id_was_drawn_may_do_so_but_a_plain_one_has_none(server: Server) -> None:
    async def life(ctx: Context) -> str:
        if not re.fullmatch(r"\d+-\d+", ctx.job_id):
            await job.anew(ctx)
            return "unkept"
        with pytest.raises(ConfigError, match="cannot be used"):
            await job.anew(ctx)
        return "plain"

    job = Self(life, life, life)
    async with working(server, job.run) as (client, _):
        drawn = await start(client, job_id=None, defer_by=0.01)
        assert await drawn.result(DEADLINE_S) == NEXT
        assert await (await start(client, job_id=None, expires=600)).result(DEADLINE_S) == NEXT
        assert await (await start(client, job_id=None)).result(DEADLINE_S) == "plain"


@pytest.mark.servers
async def test_a_sync_job_may_say_it_from_its_thread(server: Server) -> None:
    loop, said = asyncio.get_running_loop(), list[bool]()

    def run(ctx: Context, n: int) -> int:
        if n:
            mine = ctx.client.options(job_id=ctx.job_id)
            for _ in range(2):
                found = asyncio.run_coroutine_threadsafe(mine.enqueue("run", n - 1), loop)
                said.append(found.result(DEADLINE_S).existing)
        return n

    async with working(server, run) as (client, _):
        assert await (await client.options(job_id="mine").enqueue(run, 3)).result(DEADLINE_S) == 0
    assert said == [False, True] * 3


@pytest.mark.servers
async def test_its_child_tasks_and_other_clients_speak_for_it(server: Server) -> None:
    async def by_task(ctx: Context) -> None:
        await asyncio.create_task(job.anew(ctx, FIRST))

    async def by_grandchild(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(by_task(ctx))

    async def by_gather(ctx: Context) -> None:
        await asyncio.gather(*(job.anew(ctx, FIRST) for _ in range(3)))

    async def by_other_client(ctx: Context) -> None:
        async with Client(server.url()) as other:
            handle = await other.options(job_id="mine").enqueue("run", NEXT)
            job.said.append(handle.existing)

    job = Self(by_task, by_grandchild, by_gather, by_other_client)
    async with working(server, job.run) as (client, _):
        assert await (await start(client)).result(DEADLINE_S) == NEXT
    assert job.ran == [(FIRST, 1)] * 4 + [(NEXT, 1)]
    assert (job.said.count(False), len(job.said)) == (4, 6)


@pytest.mark.servers
async def test_a_task_that_outlives_its_run_speaks_for_it_no_more(server: Server) -> None:
    """It is an enqueueing like any other: while the next runs, that is there."""
    go, left = asyncio.Event(), list[asyncio.Task[None]]()

    async def afterwards(ctx: Context) -> None:
        await go.wait()
        await job.anew(ctx, "afterwards")

    async def leaves_one(ctx: Context) -> str:
        left.append(asyncio.create_task(afterwards(ctx)))
        return "left"

    job, hold = Self(leaves_one, leaves_one), Jobs()
    long = fastq.job(hold.long, name="long")
    async with working(server, job.run, long) as (client, _):
        assert await (await start(client)).result(DEADLINE_S) == "left"
        go.set()
        await left.pop()
        assert await client.job("mine").result(DEADLINE_S) == "afterwards"
        go.clear()
        assert await (await start(client)).result(DEADLINE_S) == "left"
        await client.options(job_id="mine").enqueue("long")
        await hold.has(1)
        go.set()
        await left.pop()
        hold.go.set()
        assert await client.job("mine").result(DEADLINE_S) == "done"
        await eventually(lambda: only_memory(Sight(server)))
    assert job.said == [False, True]


# Who may not


@pytest.mark.servers
async def test_others_find_the_run_there_and_change_nothing(server: Server) -> None:
    """A producer, another job in the same process, the same id in another queue."""
    queue, hold = Sight(server), Jobs()

    async def other(ctx: Context) -> bool:
        return (await ctx.client.options(job_id="mine").enqueue("long")).existing

    async with working(server, hold.long, other) as (client, _):
        mine = client.options(job_id="mine")
        job = await mine.enqueue("long")
        await hold.has(1)
        record = queue.record("mine")
        assert await (await client.enqueue(other)).result(DEADLINE_S) is True
        named = await client.options(job_id="another").enqueue(other)
        assert await named.result(DEADLINE_S) is True
        assert (await mine.enqueue("long")).existing
        assert (await client.options(job_id="mine", defer_by=1).enqueue("long")).existing
        assert not (await client.options(job_id="mine", queue="mail").enqueue("long")).existing
        assert queue.record("mine") == record
        hold.go.set()
        assert await job.result(DEADLINE_S) == "done"
        await eventually(lambda: only_memory(queue))
    assert hold.running == 1


@pytest.mark.servers
async def test_a_run_that_another_worker_has_taken_may_not(server: Server) -> None:
    """Its lease was lost: who runs the job now says whether it runs again."""
    queue = Sight(server)

    async def life(ctx: Context) -> None:
        queue.claim("mine", "another")
        assert (await job.anew(ctx)).existing

    job = Self(life)
    async with working(server, job.run) as (client, _):
        await start(client)
        await eventually(lambda: job.said)
    assert ":next" not in queue.record("mine")
    assert job.ran == [(FIRST, 1)]
