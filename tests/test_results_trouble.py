"""Waiting for a result while the client, the server or the stored result is in trouble."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from fastq import Client, ConfigError, ResultNotFound, SerializationError, ServerUnavailable
from servers import Server, free_port
from waiting import eventually
from workers import working

NOTICED_S = 8


async def sleep(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def test_who_waits_when_the_client_is_closed_is_told(valkey: Server) -> None:
    client = Client(valkey.url())
    job = await client.enqueue("nobody runs it")
    waits = [asyncio.ensure_future(job.result(timeout=30)) for _ in range(2)]
    await eventually(lambda: client._results._link.connection is not None)
    await client.close()
    for wait in waits:
        with pytest.raises(
            RuntimeError, match=r"was closed while a result was waited for\. The job goes on;"
        ):
            await wait


async def test_a_wait_outlives_the_server(make_server: Callable[..., Server]) -> None:
    server = make_server("valkey-9.1", "--appendonly", "yes", "--appendfsync", "always")
    async with working(server, sleep) as (client, _):
        job = await client.enqueue(sleep, 1)
        wait = asyncio.ensure_future(job.result(timeout=30))
        await eventually(lambda: client._results._link.connection is not None)
        server.kill()
        await eventually(lambda: client._results._link.connection is None)
        with pytest.raises(TimeoutError, match=r"after 0\.3 s: Redis cannot be reached \("):
            await job.result(timeout=0.3)
        server.start()
        assert await wait == 1


async def test_a_server_that_is_away_is_told_from_a_job_that_still_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    async with Client(f"redis://:secret@127.0.0.1:{port}", connect_timeout=0.1) as client:
        with pytest.raises(TimeoutError) as late:
            await client.job("1-1").result(timeout=0.6)
        assert f"Redis cannot be reached (redis://127.0.0.1:{port}/0: " in str(late.value)
        with pytest.raises(ServerUnavailable):
            await client.job("1-1").status()
    warnings = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "secret" not in caplog.text + str(late.value)


async def test_a_result_key_of_another_type_is_told(valkey: Server) -> None:
    redis = valkey.client()
    redis.hset("{fastq:default}:result:1-1", "a", "b")
    redis.set("{fastq:default}:result:1-2", "not ours")
    async with Client(valkey.url()) as client:
        with pytest.raises(ServerUnavailable, match=r"result:1-1 cannot be read: WRONGTYPE"):
            await client.job("1-1").result(timeout=10)
        with pytest.raises(ServerUnavailable, match="WRONGTYPE"):
            await client.job("1-1").status()
        with pytest.raises(SerializationError, match=r"was not written by fastq"):
            await client.job("1-2").result(timeout=10)


@pytest.mark.servers
async def test_flushall_ends_a_wait_with_not_found(server: Server) -> None:
    async with Client(server.url()) as client, asyncio.timeout(NOTICED_S):
        job = await client.enqueue("nobody runs it")
        wait = asyncio.ensure_future(job.result())
        await eventually(lambda: client._results._link.connection is not None)
        server.empty()
        with pytest.raises(ResultNotFound):
            await wait


async def test_a_wait_on_unreadable_tls_files_says_so() -> None:
    url = "rediss://127.0.0.1:1/0?ssl_ca_certs=/nowhere.pem"
    async with Client(url, connect_timeout=0.2) as client:
        with pytest.raises(ConfigError, match="A TLS file"):
            await client.job("1-1").result(timeout=10)
