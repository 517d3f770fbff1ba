"""`enqueue_many`: order, memory, and how far it came when something is wrong in the middle."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fastq
from fastq import (
    Client,
    ConfigError,
    Context,
    EnqueueError,
    EnqueueUncertain,
    PayloadTooLarge,
    SerializationError,
)
from proxy import Proxy
from servers import Server
from waiting import eventually
from workers import Queue, working


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


def calls(number: int, size: int = 0) -> Iterator[fastq.Call[Any]]:
    return (fastq.call("add", i, "x" * size) for i in range(number))


def stored(server: Server) -> list[int]:
    """The first arguments of all jobs in the queue, in its order."""
    found: Any = server.client().xrange(Queue(server).stream)
    return [int(fields[b"d"].strip(b"[").split(b",")[0]) for _, fields in found]


# What goes out


@pytest.mark.servers
@pytest.mark.parametrize("number", [0, 1, 499, 500, 501, 3_001])
async def test_handles_come_in_the_order_of_the_calls(server: Server, number: int) -> None:
    async with Client(server.url()) as client:
        jobs = await client.enqueue_many(calls(number))
        assert len(jobs) == number
        assert stored(server) == list(range(number))
        found: Any = server.client().xrange(Queue(server).stream)
        assert [job.id.encode() for job in jobs] == [entry_id for entry_id, _ in found]


async def test_handles_know_the_function_and_the_queue(valkey: Server) -> None:
    async with working(valkey, add, queues=["mail"]) as (client, _):
        jobs = await client.enqueue_many([fastq.call(add, i, y=i) for i in range(50)])
        assert {job.queue for job in jobs} == {"mail"}
        assert [await job.result(timeout=10) for job in jobs] == [2 * i for i in range(50)]


async def test_without_handles_it_returns_the_count(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        assert await client.enqueue_many(calls(1_234), handles=False) == 1_234
        assert await client.enqueue_many([], handles=False) == 0
    assert Queue(valkey).length() == 1_234


async def test_any_iterable_is_taken(valkey: Server) -> None:
    one = fastq.call(add, 1, 2)
    async with Client(valkey.url()) as client:
        for iterable in ([one], (one,), {one}, {one: 1}, iter([one]), (c for c in [one])):
            assert len(await client.enqueue_many(iterable)) == 1


async def test_without_handles_memory_is_bounded(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        await client.enqueue_many(calls(5_000), handles=False)
        gc.collect()
        tracemalloc.start()
        try:
            assert await client.enqueue_many(calls(200_000), handles=False) == 200_000
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # A few batches; the 200,000 together would be some 20 MB.
    assert peak < 4 * 1024 * 1024
    assert Queue(valkey).length() == 205_000


async def test_large_payloads_are_sent_in_smaller_batches(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        await client.enqueue_many(calls(1))
        tracemalloc.start()
        try:
            await client.enqueue_many(calls(300, size=200_000), handles=False)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 16 * 1024 * 1024
    assert Queue(valkey).length() == 301


async def test_others_are_served_meanwhile(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        many = asyncio.ensure_future(client.enqueue_many(calls(20_000), handles=False))
        between = 0
        while not many.done():
            await client.enqueue("add", -1, 0)
            between += 1
    assert between >= 5
    assert Queue(valkey).length() == 20_000 + between


# What is wrong in the middle: (the call at fault, error, what its message begins with)

AT = 1_234
ONE: Any = (add, 1)
COMPLEX: Any = (add, 1, 1j)
WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: fastq.call(*ONE), TypeError, "add() missing 1 required argument: 'y'."),
    (lambda: fastq.call(*COMPLEX), SerializationError, "argument 'y' of type complex cannot"),
    (lambda: fastq.call("add", b"x" * 2_000), PayloadTooLarge, "The arguments of add take 2"),
    (lambda: fastq.call(""), ConfigError, "A function's name must be a non-empty string, not ''."),
    (lambda: add, TypeError, "enqueue_many takes fastq.call(function, …), not <function add at"),
    (lambda: None, TypeError, "enqueue_many takes fastq.call(function, …), not None."),
]


@pytest.mark.parametrize(("wrong", "kind", "message"), WRONG, ids=[w[2][:20] for w in WRONG])
@pytest.mark.parametrize("at", [0, 1, AT])
async def test_a_wrong_call_is_named_and_all_before_it_are_enqueued(
    valkey: Server, at: int, wrong: Any, kind: type[Exception], message: str
) -> None:
    some = [*calls(at), wrong(), *calls(10)]
    async with Client(valkey.url(), max_payload=1_000) as client:
        with pytest.raises(kind) as failed:
            await client.enqueue_many(some)
        many = "1 job was" if at == 1 else f"{at} jobs were"
        assert str(failed.value).startswith(f"enqueue_many: call {at}: {message}")
        assert str(failed.value).endswith(f". {many} enqueued.")
        assert stored(valkey) == list(range(at))
        assert len(await client.enqueue_many(calls(3))) == 3


async def test_an_error_of_the_iterable_itself_is_raised_with_a_note(valkey: Server) -> None:
    class Own(Exception):
        pass

    def broken() -> Iterator[fastq.Call[Any]]:
        yield from calls(AT)
        raise Own("database", 5)

    async with Client(valkey.url()) as client:
        with pytest.raises(Own) as failed:
            await client.enqueue_many(broken(), handles=False)
    assert failed.value.args == ("database", 5)
    assert failed.value.__notes__ == [
        f"enqueue_many stopped at call {AT}. {AT} jobs were enqueued."
    ]
    assert stored(valkey) == list(range(AT))


async def test_what_is_no_iterable_is_refused(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        with pytest.raises(TypeError, match="'int' object is not iterable"):
            await client.enqueue_many(5)  # type: ignore[call-overload]


# What the server refuses in the middle


@pytest.mark.servers
@pytest.mark.parametrize("handles", [True, False])
async def test_a_key_that_changes_its_type_half_way(server: Server, handles: bool) -> None:
    redis, stream = server.client(), Queue(server).stream

    def replaced() -> Iterator[fastq.Call[Any]]:
        yield from calls(5_000)
        redis.rename(stream, "moved")
        redis.set(stream, "something else")
        yield from calls(5_000)

    async with Client(server.url()) as client:
        with pytest.raises(EnqueueError) as failed:
            await client.enqueue_many(replaced(), handles=handles)
    length = int(redis.xlen("moved"))  # type: ignore[arg-type]
    assert 3_000 < length <= 5_000
    assert failed.value.enqueued == length
    assert str(failed.value) == (
        f"enqueue_many: call {length}: redis://127.0.0.1:{server.port}/0 refused the job: "
        "WRONGTYPE Operation against a key holding the wrong kind of value. The queue's key is no "
        f"stream: remove what uses its name, or name another queue. {length} jobs were enqueued."
    )


@pytest.mark.parametrize("name", ["valkey-9.1", "redis-6.2"])
async def test_a_server_that_fills_up_half_way(
    make_server: Callable[..., Server], name: str
) -> None:
    server = make_server(name, "--maxmemory", "20mb", "--maxmemory-policy", "noeviction")
    async with Client(server.url()) as client:
        with pytest.raises(EnqueueError, match="OOM") as failed:
            await client.enqueue_many(calls(100_000, size=1_000), handles=False)
    length = Queue(server).length()
    assert 1_000 < length < 50_000
    assert failed.value.enqueued == length
    assert str(failed.value).endswith(
        " The server is full (maxmemory): free memory or raise the limit, then try again. "
        f"{length} jobs were enqueued."
    )


async def test_a_connection_lost_half_way_counts_only_what_is_sure(valkey: Server) -> None:
    async with Proxy(valkey.port) as proxy, Client(proxy.url()) as client:

        def cut() -> Iterator[fastq.Call[Any]]:
            yield from calls(5_000)
            proxy.cut()
            yield from calls(5_000)

        with pytest.raises(EnqueueUncertain) as failed:
            await client.enqueue_many(cut(), handles=False)
    enqueued = failed.value.enqueued
    assert 3_000 < enqueued <= Queue(valkey).length() <= enqueued + 2_000
    assert str(failed.value).startswith(f"enqueue_many: call {enqueued}: ")
    assert str(failed.value).endswith(
        f"the replies were lost, so it and some after it may run. {enqueued} jobs were enqueued."
    )


async def test_a_server_away_from_the_start_takes_nothing(
    make_server: Callable[..., Server],
) -> None:
    server = make_server()
    server.kill()
    async with Client(server.url(), connect_timeout=0.2) as client:
        with pytest.raises(
            EnqueueError, match=r"^enqueue_many: call 0: .* 0 jobs were enqueued\.$"
        ):
            await client.enqueue_many(calls(2_000))


async def test_cancelled_half_way_leaves_the_client_usable(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        many = asyncio.ensure_future(client.enqueue_many(calls(100_000), handles=False))
        await eventually(lambda: Queue(valkey).length() > 1_000)
        many.cancel()
        with pytest.raises(asyncio.CancelledError):
            await many
        job = await client.enqueue("add", 1, 2)
        assert await job.status() == "queued"
