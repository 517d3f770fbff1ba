"""Every error of fastq, provoked through its public names."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import fastq
from fastq import Client
from fastq.loading import load_settings
from fastq.settings import Settings
from fastq.worker import Worker
from lab import HASTE_S, Lab, add
from proxy import Proxy
from servers import free_port
from waiting import eventually
from workers import Queue

_ONE: Any = (add, 1)
TOO_FEW = fastq.call(*_ONE)

Provoke = Callable[[Lab], Awaitable[Any]]


# Enqueueing


async def away(lab: Lab) -> None:
    lab.server.kill()
    await lab.client.enqueue(add, 1, 2)


async def silent(lab: Lab) -> None:
    lab.server.pause()
    await lab.client.enqueue(add, 1, 2)


async def wrong_password(lab: Lab) -> None:
    lab.redis.config_set("requirepass", "another")
    await lab.client.enqueue(add, 1, 2)


async def no_permission(lab: Lab) -> None:
    lab.redis.acl_setuser("default", commands=["-xadd"], enabled=True)
    await lab.client.enqueue(add, 1, 2)


async def full(lab: Lab) -> None:
    lab.redis.config_set("maxmemory", 1)
    await lab.client.enqueue(add, 1, 2)


async def wrong_type(lab: Lab) -> None:
    lab.redis.set(Queue(lab.server).stream, "something else")
    await lab.client.enqueue(add, 1, 2)


async def replica(lab: Lab) -> None:
    lab.redis.replicaof("127.0.0.1", str(free_port()))
    await lab.client.enqueue(add, 1, 2)


async def cut(lab: Lab) -> None:
    """The reply is lost: the server takes the job while nobody listens any more."""
    async with Proxy(lab.port) as proxy:
        lab.port = proxy.port
        url = lab.server.url().replace(str(lab.server.port), str(proxy.port))
        async with Client(url, connect_timeout=10) as client:
            await client.enqueue(add, 1, 2)
            lab.server.pause()
            enqueueing = asyncio.ensure_future(client.enqueue(add, 1, 2))
            connection = client._link.connection
            assert connection is not None
            await eventually(lambda: len(connection.wire) > 0 and not connection.wire.unwritten)
            proxy.cut()
            try:
                await enqueueing
            finally:
                lab.server.resume()


async def no_reply(lab: Lab) -> None:
    await lab.client.enqueue(add, 1, 2)
    lab.server.pause()
    try:
        await lab.client.enqueue(add, 1, 2)
    finally:
        lab.server.resume()


async def naive(lab: Lab) -> None:
    lab.client.options(defer_until=datetime(2030, 1, 2))


def named(job_id: str) -> Provoke:
    async def provoke(lab: Lab) -> None:
        lab.client.options(job_id=job_id)

    return provoke


async def foreign_record(lab: Lab) -> None:
    lab.redis.lpush("{fastq:default}:job:mine", "something else")
    await lab.client.options(job_id="mine").enqueue(add, 1, 2)


async def many_refused(lab: Lab) -> None:
    def calls() -> Any:
        for n in range(3_000):
            if n == 2_500:
                lab.redis.rename(Queue(lab.server).stream, "moved")
                lab.redis.set(Queue(lab.server).stream, "something else")
            yield fastq.call(add, n, n)

    await lab.client.enqueue_many(calls())


def enqueue(*args: Any, **options: Any) -> Provoke:
    async def provoke(lab: Lab) -> None:
        async with Client(lab.server.url(), **options) as client:
            await client.enqueue(*args)

    return provoke


def enqueue_many(*calls: Any) -> Provoke:
    return lambda lab: lab.client.enqueue_many(calls)


# Results


def result(*call: Any, **options: Any) -> Provoke:
    return lambda lab: lab.result(*call, **options)


async def expired(lab: Lab) -> None:
    lab.job = await lab.client.options(expires=0.001).enqueue(add, 1, 2)
    await asyncio.sleep(0.002)
    await lab.work()
    await lab.job.result(timeout=10)


async def undecodable(lab: Lab) -> None:
    await lab.work()
    lab.job = lab.client.job(Queue(lab.server).add(f="add", d=b"\xff\x00"))
    await lab.job.result(timeout=10)


async def never_was(lab: Lab) -> None:
    await lab.client.job("1-1", queue="mail").result(timeout=10)


async def result_while_away(lab: Lab) -> None:
    lab.server.kill()
    lab.job = lab.client.job("1-1")
    await lab.job.result(timeout=2 * HASTE_S)


async def status_while_away(lab: Lab) -> None:
    lab.server.kill()
    await lab.client.job("1-1").status()


async def foreign_result(lab: Lab) -> None:
    lab.redis.set("{fastq:default}:result:1-1", "of another program")
    await lab.client.job("1-1").result(timeout=10)


async def foreign_key(lab: Lab) -> None:
    lab.redis.hset("{fastq:default}:result:1-1", "a", "b")
    await lab.client.job("1-1").result(timeout=10)


async def other_type(lab: Lab) -> None:
    await lab.work()
    lab.job = await lab.client.enqueue("belied")
    await lab.client.job(lab.job.id, returns=int).result(timeout=10)


# Misuse


async def closed(lab: Lab) -> None:
    await lab.client.close()
    await lab.client.enqueue(add, 1, 2)


async def closed_while_waiting(lab: Lab) -> None:
    lab.job = await lab.client.enqueue(add, 1, 2)
    wait = asyncio.ensure_future(lab.job.result())
    await eventually(lambda: bool(lab.client._results._waits))
    await lab.client.close()
    await wait


async def other_loop(lab: Lab) -> None:
    async def inside() -> None:
        await lab.client.enqueue(add, 1, 2)

    await lab.client.enqueue(add, 1, 2)
    await asyncio.to_thread(asyncio.run, inside())


async def worker_again(lab: Lab) -> None:
    await lab.work()
    assert lab._worker is not None
    await lab._worker.run()


async def burst_while_away(lab: Lab) -> None:
    lab.server.kill()
    await Worker(lab.settings(burst=True)).run()


# Settings


def settings(**values: Any) -> Provoke:
    async def provoke(lab: Lab) -> None:
        Settings.read(lab.settings(**values))

    return provoke


def path(name: str) -> Provoke:
    async def provoke(lab: Lab) -> None:
        load_settings(name)

    return provoke


def settings_of(source: Any) -> Provoke:
    return plain(Settings.read, source)


def enqueue_at(text: str) -> Provoke:
    async def provoke(lab: Lab) -> None:
        async with Client(text) as client:
            await client.enqueue(add, 1, 2)

    return provoke


def url(text: str) -> Provoke:
    async def provoke(lab: Lab) -> None:
        Client(text)

    return provoke


def plain(call: Callable[..., Any], *args: Any, **options: Any) -> Provoke:
    async def provoke(lab: Lab) -> None:
        call(*args, **options)

    return provoke


def make_job(**options: Any) -> Provoke:
    async def provoke(lab: Lab) -> None:
        lab.client.job(**options)

    return provoke


@dataclasses.dataclass
class Seeded:
    """What JSON cannot carry: the seed is not kept."""

    value: int
    seed: dataclasses.InitVar[int]
