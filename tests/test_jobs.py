"""Jobs run, know what they are, get what was sent, and give back what they return."""

import asyncio
import contextlib
import contextvars
import dataclasses
import datetime
import json
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pydantic
import pytest

import fastq
from fastq import Client, Context
from servers import Server
from workers import DEADLINE_S, Queue, working


async def add(x: int, y: int = 10) -> int:
    return x + y


def slow_add(x: int, y: int = 10) -> int:
    """Sync: it runs in a thread."""
    return x + y


async def about(ctx: Context) -> dict[str, Any]:
    return {
        "job_id": ctx.job_id,
        "function": ctx.function,
        "queue": ctx.queue,
        "tries": ctx.tries,
        "enqueued_at": ctx.enqueued_at,
        "state": ctx.state,
    }


def about_sync(ctx: Context) -> str:
    return ctx.job_id


async def bare(ctx, x):  # type: ignore[no-untyped-def]
    return ctx.function, x


async def parent(ctx: Context, x: int) -> str:
    job = await ctx.client.enqueue(add, x)
    return job.id


@pytest.mark.servers
async def test_jobs_run_and_their_results_come_back(server: Server) -> None:
    async with working(server, add, slow_add) as (client, _):
        jobs = [await client.enqueue(add, n, n) for n in range(20)]
        jobs += [await client.enqueue(slow_add, n, y=n) for n in range(20)]
        jobs += await client.enqueue_many(fastq.call(add, n) for n in range(20))
        results = [await job.result(DEADLINE_S) for job in jobs]
    assert results == [2 * n for n in range(20)] * 2 + [n + 10 for n in range(20)]
    queue = Queue(server)
    assert (queue.length(), queue.pending(), queue.dead()) == (0, {}, [])


@pytest.mark.servers
async def test_a_job_is_queued_then_running_then_complete(server: Server) -> None:
    go = asyncio.Event()

    async def wait() -> None:
        await go.wait()

    async with working(server, wait, max_jobs=1) as (client, _):
        first, second = await client.enqueue(wait), await client.enqueue(wait)
        while await first.status() != "running":
            pass
        assert await second.status() == "queued"
        go.set()
        await second.result(DEADLINE_S)
        assert await first.status() == "complete"
        assert await client.job("1-1").status() == "not_found"


async def test_a_job_knows_itself(server: Server) -> None:
    async with working(server, about, about_sync, bare, queues=["mine"]) as (client, _):
        before = datetime.datetime.now(datetime.UTC)
        job = await client.enqueue(about)
        facts = await job.result(DEADLINE_S)
        sync = await client.enqueue(about_sync)
        assert await sync.result(DEADLINE_S) == sync.id
        assert await (await client.enqueue("bare", 7)).result(DEADLINE_S) == ["bare", 7]
    at = datetime.datetime.fromisoformat(facts.pop("enqueued_at"))
    assert abs(at - before) < timedelta(seconds=60)
    assert at.tzinfo is not None
    assert facts == {
        "job_id": job.id, "function": "about", "queue": "mine", "tries": 1, "state": {},
    }  # fmt: skip


async def test_a_job_enqueues_a_job(server: Server) -> None:
    async with working(server, parent, add, max_jobs=1) as (client, _):
        child = await (await client.enqueue(parent, 5)).result(DEADLINE_S)
        assert await client.job(child, returns=int).result(DEADLINE_S) == 15


async def test_keywords_may_have_any_name(server: Server) -> None:
    async def take(fn: int, self: int, *more: int, timeout: int, **rest: int) -> list[Any]:
        return [fn, self, more, timeout, rest]

    async with working(server, take) as (client, _):
        job = await client.enqueue("take", 1, 2, 3, timeout=4, job_id=5, queue=6)
        assert await job.result(DEADLINE_S) == [1, 2, [3], 4, {"job_id": 5, "queue": 6}]


@dataclasses.dataclass
class Order:
    number: int
    at: datetime.datetime


class Person(pydantic.BaseModel):
    name: str
    born: datetime.date


async def describe(at: datetime.datetime, order: Order, person: Person, b: bytes) -> list[str]:
    return [type(value).__name__ for value in (at, order, order.at, person, person.born, b)]


async def later(order: Order, by: timedelta) -> Order:
    return Order(order.number, order.at + by)


@pytest.mark.servers
async def test_arguments_arrive_as_annotated(server: Server) -> None:
    at = datetime.datetime(2026, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)
    person = Person(name="Ada", born=datetime.date(1815, 12, 10))
    async with working(server, describe, later) as (client, _):
        job = await client.enqueue(describe, at, Order(1, at), person, b"x")
        other = await client.enqueue(later, order=Order(1, at), by=timedelta(hours=1))
        assert await job.result(DEADLINE_S) == [
            "datetime", "Order", "datetime", "Person", "date", "bytes",
        ]  # fmt: skip
        assert await other.result(DEADLINE_S) == Order(1, at + timedelta(hours=1))


async def test_pickle_carries_what_json_cannot(server: Server) -> None:
    async with working(server, later, serializer="pickle") as (client, _):
        at = datetime.datetime(2026, 2, 3)
        job = await client.enqueue("later", Order(1, at), by=timedelta(hours=1))
        assert await job.result(DEADLINE_S) == Order(1, at + timedelta(hours=1))


class Reversed:
    """A serializer of the user's own."""

    def dumps(self, value: object) -> bytes:
        return json.dumps(value).encode()[::-1]

    def loads(self, data: bytes) -> Any:
        return json.loads(data[::-1])


async def test_an_own_serializer_is_used_both_ways(server: Server) -> None:
    async with working(server, add, serializer=Reversed()) as (client, _):
        job = await client.enqueue(add, 1, y=2)
        assert await job.result(DEADLINE_S) == 3
        stored = cast(bytes, Queue(server).redis.get(f"{{fastq:default}}:result:{job.id}"))
        assert stored.endswith(b"\n3")


# What jobs must not share

number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


async def set_number(n: int) -> int:
    """Before its first await it may run in the reader's own stack (eager tasks)."""
    before = number.get()
    number.set(n)
    await asyncio.sleep(0)
    assert number.get() == n
    return before


def set_number_sync(n: int) -> int:
    before = number.get()
    number.set(n)
    return before


async def eager(n: int) -> int:
    before = number.get()
    number.set(n)
    return before


@pytest.mark.parametrize("function", [set_number, set_number_sync, eager])
async def test_jobs_do_not_share_context_variables(server: Server, function: Any) -> None:
    async with working(server, function, max_jobs=3) as (client, _):
        jobs = await client.enqueue_many(fastq.call(function, n) for n in range(1, 30))
        assert [await job.result(DEADLINE_S) for job in jobs] == [0] * 29
    assert number.get() == 0


async def test_a_sync_job_sees_the_worker_s_context_in_its_own_thread(server: Server) -> None:
    def where() -> tuple[int, bool]:
        return number.get(), threading.current_thread() is threading.main_thread()

    number.set(7)
    async with working(server, where) as (client, _):
        assert await (await client.enqueue(where)).result(DEADLINE_S) == (7, False)


async def test_sync_jobs_do_not_hold_up_the_loop(server: Server) -> None:
    go = threading.Event()

    def block() -> bool:
        return go.wait(DEADLINE_S)

    async with working(server, block, add) as (client, _):
        blocked = await client.enqueue(block)
        assert await (await client.enqueue(add, 1)).result(DEADLINE_S) == 11
        go.set()
        assert await blocked.result(DEADLINE_S) is True


async def test_start_and_finish_are_stored_by_the_server_s_clock(server: Server) -> None:
    async def nap() -> None:
        await asyncio.sleep(0.05)

    async with working(server, nap) as (client, _):
        job = await client.enqueue(nap)
        await job.result(DEADLINE_S)
    key = f"{{fastq:default}}:result:{job.id}"
    stored = cast(bytes, Queue(server).redis.get(key)).split(b"\n")[0].split()
    enqueued_ms, started_ms, finished_ms = int(job.id.split("-")[0]), *map(int, stored[2:4])
    assert stored[:2] + stored[4:] == [b"complete", b"-", b"1"]
    assert enqueued_ms - 5 <= started_ms <= finished_ms - 45
    assert finished_ms <= time.time() * 1000 + 5


async def test_all_jobs_of_a_thousand_at_once_come_back(server: Server) -> None:
    async def one(client: Client, n: int) -> int:
        return await (await client.enqueue(add, n, 0)).result(DEADLINE_S)

    async with working(server, add) as (client, _):
        results = await asyncio.gather(*(one(client, n) for n in range(1000)))
    assert results == list(range(1000))


async def test_jobs_see_what_lifespan_made(server: Server) -> None:

    @contextlib.asynccontextmanager
    async def lifespan(settings: object) -> Any:
        yield {"settings": settings is not None, "n": 3}

    async def see(ctx: Context) -> Any:
        return dict(cast(Mapping[str, Any], ctx.state))

    async with working(server, see, lifespan=lifespan) as (client, _):
        assert await (await client.enqueue(see)).result(DEADLINE_S) == {"settings": True, "n": 3}
