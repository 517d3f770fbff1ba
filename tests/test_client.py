"""The producer's side: what is enqueued, with which options, and where a client may be used."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

import fastq
from fastq import Client, ConfigError, Context, Job, WorkerSettings
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import Queue, ended, settings_of, start, working


async def add(ctx: Context, x: int, y: int = 2) -> int:
    return x + y


async def awkward(fn: int, self: int, timeout: int, job_id: int) -> list[int]:
    return [fn, self, timeout, job_id]


async def where(ctx: Context) -> list[str]:
    return [ctx.queue, ctx.job_id, ctx.function]


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def fail() -> None:
    raise ValueError("on purpose")


@fastq.job(name="renamed", keep_result=0)
async def original() -> str:
    return "kept nowhere"


@pytest.fixture
async def client(valkey: Server) -> AsyncIterator[Client]:
    async with Client(valkey.url()) as client:
        yield client


class Writes:
    """Stands in for a connection's transport and counts what is written."""

    def __init__(self, client: Client) -> None:
        connection = client._link.connection
        assert connection is not None
        self.sizes: list[int] = []
        self._transport: Any = connection._transport
        connection._transport = self  # type: ignore[assignment]

    def write(self, data: bytes) -> None:
        self.sizes.append(len(data))
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


# What is enqueued


async def test_a_job_is_enqueued_by_function_or_by_name(valkey: Server) -> None:
    async with working(valkey, add, original) as (client, _):
        jobs = [
            await client.enqueue(add, 1),
            await client.enqueue(add, 1, y=5),
            await client.enqueue("add", x=1, y=6),
        ]
        assert [await job.result(timeout=10) for job in jobs] == [3, 6, 7]
        renamed = await client.enqueue(original)
        await becomes(renamed, "not_found")


async def test_arguments_may_have_the_names_of_parameters_of_enqueue(valkey: Server) -> None:
    async with working(valkey, awkward) as (client, _):
        names = {"fn": 1, "self": 2, "timeout": 3, "job_id": 4}
        for job in (
            await client.enqueue(awkward, **names),
            await client.enqueue("awkward", **names),
            await client.options(timeout=5).enqueue(awkward, **names),
            *await client.enqueue_many([fastq.call(awkward, **names)]),
        ):
            assert await job.result(timeout=10) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "add() missing 1 required argument: 'x'"),
        ((1, 2, 3), {}, "add() takes 2 positional arguments but 3 were given"),
        ((1,), {"z": 2}, "add() got an unexpected keyword argument 'z'"),
        ((1, 2), {"x": 2}, "add() got multiple values for argument 'x'"),
    ],
)
async def test_arguments_that_do_not_fit_the_function_are_refused_at_once(
    client: Client, valkey: Server, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as refused:
        await client.enqueue(add, *args, **kwargs)
    assert str(refused.value) == message
    assert Queue(valkey).length() == 0


async def test_a_thousand_concurrent_enqueues_are_one_write(client: Client, valkey: Server) -> None:
    await client.enqueue(add, 0)
    writes = Writes(client)
    jobs = await asyncio.gather(*(client.enqueue(add, n) for n in range(1_000)))
    assert len(writes.sizes) == 1
    assert Queue(valkey).length() == 1_001
    assert [job.id for job in jobs] == sorted({job.id for job in jobs}, key=_place)


async def test_the_first_thousand_share_the_connection_that_they_open(valkey: Server) -> None:
    async with Client(valkey.url()) as client:
        await asyncio.gather(*(client.enqueue(add, n) for n in range(1_000)))
        named = [one["name"] for one in valkey.client().client_list()]  # type: ignore[union-attr]
        assert named.count("fastq:client") == 1
    assert Queue(valkey).length() == 1_000


async def test_a_cancelled_enqueue_does_not_disturb_the_others(client: Client) -> None:
    await client.enqueue(add, 0)
    tasks = [asyncio.ensure_future(client.enqueue(add, n)) for n in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    jobs = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(jobs[0], Job)
    assert isinstance(jobs[1], asyncio.CancelledError)
    assert isinstance(jobs[2], Job)
    assert _place(jobs[2].id) > _place(jobs[0].id)


# Queues and options


async def test_the_queue_is_known_after_its_first_use(valkey: Server, client: Client) -> None:
    await client.enqueue(add, 1)
    await client.options(queue="mail").enqueue_many([fastq.call(add, 1)], handles=False)
    assert valkey.client().smembers("fastq:queues") == {b"default", b"mail"}


async def test_options_name_another_queue(valkey: Server, client: Client) -> None:
    mail = client.options(queue="mail")
    job = await mail.enqueue(where)
    assert (mail.queue, job.queue, client.queue) == ("mail", "mail", "default")
    async with working(valkey, where, queues=["mail"]):
        assert await job.result(timeout=10) == ["mail", job.id, "where"]
    assert Queue(valkey).length() == 0


async def test_options_set_the_time_limit(valkey: Server) -> None:
    async with working(valkey, sleep, job_timeout=0.1) as (client, _):
        assert await ended(await client.enqueue(sleep, 30)) == "failed"
        assert await ended(await client.options(timeout=None).enqueue(sleep, 0.4)) == "complete"
        short = client.options(timeout=timedelta(milliseconds=100))
        with pytest.raises(fastq.JobTimeout, match=r"0\.1 s"):
            await (await short.enqueue(sleep, 30)).result(timeout=10)


@pytest.mark.parametrize(
    ("keep_result", "lowest_ms", "highest_ms"),
    [(None, -1, -1), (60, 50_000, 60_000), (timedelta(minutes=2), 110_000, 120_000)],
)
async def test_options_say_how_long_a_result_is_kept(
    valkey: Server, keep_result: Any, lowest_ms: int, highest_ms: int
) -> None:
    async with working(valkey, add) as (client, _):
        for how in (client.options(keep_result=keep_result), client.options()):
            job = await how.enqueue(add, 1)
            assert await job.result(timeout=10) == 3
            kept_ms = Queue(valkey).result_ttl_ms(job.id)
            assert lowest_ms <= kept_ms <= highest_ms
            lowest_ms, highest_ms = 590_000, 600_000  # without the option it is the worker's


@pytest.mark.parametrize("value", ["5", -1, True, float("nan"), timedelta(-1), 1e10, [], object()])
def test_options_refuse_what_is_no_duration(value: Any) -> None:
    client = Client()
    with pytest.raises(ConfigError, match=r"^timeout must be a positive number of seconds"):
        client.options(timeout=value)
    with pytest.raises(ConfigError, match=r"^keep_result must be a positive number of seconds"):
        client.options(keep_result=value)
    with pytest.raises(ConfigError, match=r"^connect_timeout must be a positive number of seconds"):
        Client(connect_timeout=value)


@pytest.mark.parametrize("name", ["", "a{b}", "a\nb", 5, None])
def test_a_queue_that_cannot_be_called_so_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="queue name"):
        Client(queue=name)
    if name is not None:
        with pytest.raises(ConfigError, match="queue name"):
            Client().options(queue=name)


def test_a_client_is_made_from_the_settings_of_a_worker(valkey: Server) -> None:
    class Worker(WorkerSettings):
        functions = (add,)
        redis = valkey.url()
        queues = ("mail",)
        serializer = "pickle"
        max_payload = 100

    client = Client.from_settings(Worker, connect_timeout=1)
    assert repr(client) == f"<Client of redis://127.0.0.1:{valkey.port}/0, queue 'mail'>"
    assert not client._codec.converts
    assert client._max_payload == 100
    assert client._timeout_s == 1


# Status


@pytest.mark.servers
async def test_status_follows_a_job_from_queue_to_end(server: Server) -> None:
    settings = settings_of(server, sleep, fail)
    async with Client.from_settings(settings) as client:
        good, bad = await client.enqueue(sleep, 0.3), await client.enqueue(fail)
        unkept = await client.options(keep_result=0).enqueue(sleep, 0.2)
        assert [await job.status() for job in (good, bad, unkept)] == ["queued"] * 3
        async with working(server, sleep, fail):
            await becomes(good, "running")
            assert await unkept.status() == "running"
            assert await ended(good) == "complete"
            assert await ended(bad) == "failed"
            await becomes(unkept, "not_found")


@pytest.mark.servers
async def test_status_of_what_never_was_is_not_found(server: Server) -> None:
    async with Client(server.url()) as client:
        for job_id in ("1-1", "nonsense", "1-1-1", f"{2**64}-0", f"{10**30}-0", "é"):
            assert await client.job(job_id).status() == "not_found"
        job = await client.enqueue(add, 1)
        assert await client.job(job.id, queue="other").status() == "not_found"
        assert await client.job(job.id).status() == "queued"


@pytest.mark.servers
async def test_a_job_that_was_handed_back_is_queued(server: Server) -> None:
    settings = settings_of(server, sleep)
    worker = Worker(settings)
    run = await start(worker)
    async with Client.from_settings(settings) as client:
        job = await client.enqueue(sleep, 30)
        await becomes(job, "running")
        await worker.stop(timeout=0)
        await run
        assert await job.status() == "queued"


async def becomes(job: Job[Any], status: str) -> str:
    async def right() -> str:
        return status if await job.status() == status else ""

    return await eventually(right)


def _place(job_id: str) -> tuple[int, ...]:
    return tuple(map(int, job_id.split("-")))
