"""Where a client may be used, and what it says elsewhere."""

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import fastq
from fastq import Client, Context, EnqueueError
from servers import Server, free_port
from waiting import eventually
from workers import Queue, working


async def add(ctx: Context, x: int, y: int = 2) -> int:
    return x + y


def test_in_another_loop_a_client_says_so(valkey: Server) -> None:
    client = Client(valkey.url())
    first = asyncio.new_event_loop()
    job = first.run_until_complete(client.enqueue(add, 1))
    for use in (
        lambda: client.enqueue(add, 1),
        lambda: client.enqueue_many([fastq.call(add, 1)]),
        job.status,
        job.result,
        client.close,
    ):
        with pytest.raises(RuntimeError, match=r"another event loop\. Make a Client in each\.$"):
            asyncio.run(_called(use))
    first.run_until_complete(client.close())
    first.close()


async def test_after_close_a_client_says_so(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        job = await client.enqueue(add, 1)
    for use in (
        lambda: client.enqueue(add, 1),
        lambda: client.options(queue="mail").enqueue(add, 1),
        lambda: client.enqueue_many([fastq.call(add, 1)] * 1_000),
        job.status,
        job.result,
    ):
        with pytest.raises(RuntimeError, match=r"was closed\. Make a new Client\.$") as refused:
            await _called(use)
        # Found out before the first call was packed: none is to blame.
        assert not hasattr(refused.value, "__notes__")
    await client.close()


AFTER_FORK = """
    import asyncio, os, sys, traceback
    from fastq import Client

    async def parent(client):
        job = await client.enqueue("add", 1)
        pid = os.fork()
        if not pid:
            return job, 0
        os.waitpid(pid, 0)
        # The child must not have closed or used what the parent still needs.
        for _ in range(3):
            await client.enqueue("add", 1)
        assert await job.status() == "queued"
        await client.close()
        return job, pid

    async def child(use):
        try:
            await use()
        except RuntimeError as error:
            print(error, flush=True)

    client = Client(sys.argv[1])
    loop = asyncio.new_event_loop()
    job, pid = loop.run_until_complete(parent(client))
    if not pid:
        for use in (lambda: client.enqueue("add", 1), job.status, job.result, client.close):
            asyncio.run(child(use))
        os._exit(0)
"""


def test_after_a_fork_a_client_says_so(valkey: Server) -> None:
    command = [sys.executable, "-c", textwrap.dedent(AFTER_FORK), valkey.url()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=os.environ)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 4
    for line in said:
        assert line.endswith(
            "belongs to another process (it was used before a fork). Make a Client in each."
        )
    assert Queue(valkey).length() == 4


async def test_two_clients_share_a_loop(valkey: Server) -> None:
    async with working(valkey, add) as (one, _), Client(valkey.url(), queue="default") as two:
        jobs = [await client.enqueue(add, 1) for client in (one, two, one, two)]
        assert [await job.result(timeout=10) for job in jobs] == [3] * 4
        assert await two.job(jobs[0].id).result(timeout=10) == 3
        await two.close()
        assert await (await one.enqueue(add, 2)).result(timeout=10) == 4


async def test_a_client_closed_while_it_connects_is_closed_for_those_who_wait() -> None:
    client = Client(f"redis://127.0.0.1:{free_port()}", connect_timeout=30)
    enqueueing = asyncio.ensure_future(client.enqueue(add, 1))
    await eventually(lambda: client._link._opening is not None)
    await client.close()
    with pytest.raises(RuntimeError, match=r"was closed\. Make a new Client\.$"):
        await enqueueing


async def test_a_server_that_is_away_is_told_within_the_connect_timeout() -> None:
    async with Client(f"redis://127.0.0.1:{free_port()}", connect_timeout=0.3) as client:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(EnqueueError) as refused:
            await client.enqueue(add, 1)
        assert asyncio.get_running_loop().time() - begun < 1
        assert refused.value.enqueued == 0


async def test_a_client_comes_back_with_its_server(make_server: Callable[..., Server]) -> None:
    server = make_server()
    async with Client(server.url(), connect_timeout=10) as client:
        await client.enqueue(add, 1)
        server.kill()
        await eventually(lambda: client._link.connection is None)
        enqueueing = asyncio.ensure_future(client.enqueue(add, 2))
        await eventually(lambda: client._link._opening is not None)
        server.start()
        assert await (await enqueueing).status() == "queued"
    assert Queue(server).length() == 1


async def _called(use: Callable[[], Any]) -> Any:
    async with asyncio.timeout(10):  # one that is not refused would wait for ever
        return await use()
