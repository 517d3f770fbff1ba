"""Options of jobs: how long results are kept, under which name a function runs."""

import json
from datetime import timedelta

import pytest

import fastq
from fastq import ResultNotFound
from servers import Server
from workers import DEADLINE_S, Queue, ended, working


async def add(x: int, y: int = 10) -> int:
    return x + y


TTL = {"second": 5, "never": 0, "ever": None, "delta": timedelta(seconds=7)}


@pytest.mark.servers
async def test_results_are_kept_as_long_as_asked(server: Server) -> None:
    kept = [fastq.job(add, name=name, keep_result=keep) for name, keep in TTL.items()]
    async with working(server, add, *kept, keep_result=100) as (client, _):
        ids = {name: (await client.enqueue(name, 1)).id for name in TTL}
        plain = await client.enqueue(add, 1)
        own = client.options(keep_result=50)
        ids |= {f"own {name}": (await own.enqueue(name, 1)).id for name in TTL}
        none = await client.options(keep_result=0).enqueue(add, 1)
        with pytest.raises(ResultNotFound):
            await none.result(DEADLINE_S)
        assert await plain.result(DEADLINE_S) == 11
        ever = await client.options(keep_result=None).enqueue("second", 1)
        await ever.result(DEADLINE_S)
    queue = Queue(server)
    found = {name: queue.result_ttl_ms(job_id) for name, job_id in ids.items()}
    assert 0 < found.pop("second") <= 5_000 < found.pop("delta") <= 7_000
    assert (found.pop("never"), found.pop("ever")) == (-2, -1)
    assert all(7_000 < left_ms <= 50_000 for left_ms in found.values())
    assert 50_000 < queue.result_ttl_ms(plain.id) <= 100_000
    assert queue.result_ttl_ms(ever.id) == -1


async def test_failures_are_kept_as_long_as_results(server: Server) -> None:
    async def fail() -> None:
        raise ValueError

    async with working(server, fail) as (client, _):
        kept = await client.options(keep_result=5).enqueue(fail)
        ever = await client.options(keep_result=None).enqueue(fail)
        none = await client.options(keep_result=0).enqueue(fail)
        assert await ended(kept) == await ended(ever) == "failed"
        with pytest.raises(ResultNotFound):
            await none.result(DEADLINE_S)
    queue = Queue(server)
    assert 0 < queue.result_ttl_ms(kept.id) <= 5_000
    assert queue.result_ttl_ms(ever.id) == -1
    assert queue.result_ttl_ms(none.id) == -2
    kept_ms = {entry["id"].decode(): entry["k"] for entry in queue.dead()}
    assert kept_ms == {kept.id: b"5000", ever.id: b"-1", none.id: b"0"}


async def test_a_function_may_run_under_another_name(server: Server) -> None:
    @fastq.job(name="mail")
    async def send(to: str) -> str:
        return f"sent to {to}"

    theirs = fastq.job(json.dumps, name="dump")
    async with working(server, send, theirs) as (client, _):
        assert await (await client.enqueue("mail", "Ada")).result(DEADLINE_S) == "sent to Ada"
        assert await (await client.enqueue(send, "Bob")).result(DEADLINE_S) == "sent to Bob"
        assert await (await client.enqueue(theirs, {"a": 1})).result(DEADLINE_S) == '{"a": 1}'
        assert await (await client.enqueue("dump", [1])).result(DEADLINE_S) == "[1]"
    assert not hasattr(json.dumps, "__fastq_job__")
