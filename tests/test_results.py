"""Results: what a waiter gets, of what type, and when there is nothing to wait for."""

import asyncio
import datetime
import decimal
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

import fastq
from fastq import (
    Client,
    ConfigError,
    JobFailed,
    JobTimeout,
    ResultNotFound,
    SerializationError,
)
from servers import Server
from waiting import eventually
from workers import Queue, working

DAY = datetime.date(2020, 1, 2)
# The status script is asked after a second, and then each five.
NOTICED_S = 8


class Point(NamedTuple):
    x: int
    y: int


class Record(msgspec.Struct):
    day: datetime.date


class Model(pydantic.BaseModel):
    price: decimal.Decimal


async def echo(value: Any) -> Any:
    return value


async def today() -> datetime.date:
    return DAY


def points() -> list[Point]:
    return [Point(1, 2)]


async def record() -> Record:
    return Record(DAY)


async def model() -> Model | None:
    return Model(price=decimal.Decimal("1.50"))


async def wrongly_annotated() -> int:
    return "no number"  # type: ignore[return-value]


async def sleep(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def fail(text: str) -> None:
    raise LookupError(text)


@fastq.job(keep_result=0)
async def unkept(seconds: float) -> None:
    await asyncio.sleep(seconds)


FUNCTIONS = (echo, today, points, record, model, wrongly_annotated, sleep, fail, unkept)


@pytest.fixture
async def client(valkey: Server) -> AsyncIterator[Client]:
    async with working(valkey, *FUNCTIONS, max_jobs=1_000) as (client, _):
        yield client


# Values


@pytest.mark.parametrize(
    "value", [None, 0, "", [], "é\n", {"a": [1, None]}, 2**80, 1.5, "x" * 10**6]
)
async def test_a_value_comes_back(client: Client, value: Any) -> None:
    job = await client.enqueue(echo, value)
    assert await job.result(timeout=10) == value
    assert await job.result() == value


async def test_a_handle_of_a_function_converts_to_its_annotation(client: Client) -> None:
    assert await (await client.enqueue(today)).result(timeout=10) == DAY
    assert await (await client.enqueue(points)).result(timeout=10) == [Point(1, 2)]
    assert await (await client.enqueue(record)).result(timeout=10) == Record(DAY)
    priced = await (await client.enqueue(model)).result(timeout=10)
    assert priced == Model(price=decimal.Decimal("1.50"))
    (many,) = await client.enqueue_many([fastq.call(today)])
    assert await many.result(timeout=10) == DAY


async def test_a_handle_made_by_id_converts_to_what_it_is_told(client: Client) -> None:
    by_name = await client.enqueue("today")
    assert await by_name.result(timeout=10) == "2020-01-02"
    for returns in (datetime.date, datetime.date | None):
        typed: Any = client.job(by_name.id, returns=returns)
        assert await typed.result(timeout=10) == DAY
    with pytest.raises(SerializationError, match="is not the int that returns= asks for"):
        await client.job(by_name.id, returns=int).result(timeout=10)
    with pytest.raises(ConfigError, match="cannot be converted to this type"):
        client.job(by_name.id, returns=object.__new__)  # type: ignore[call-overload]


async def test_a_result_that_belies_its_annotation_is_an_error_of_the_reader(
    client: Client,
) -> None:
    job = await client.enqueue(wrongly_annotated)
    with pytest.raises(SerializationError, match="not the int that its annotation says"):
        await job.result(timeout=10)
    assert await job.status() == "complete"
    assert await client.job(job.id).result() == "no number"


async def test_with_pickle_nothing_is_converted(valkey: Server) -> None:
    async with working(valkey, points, echo, serializer="pickle") as (client, _):
        assert await (await client.enqueue(points)).result(timeout=10) == [Point(1, 2)]
        assert await (await client.enqueue(echo, {1, 2})).result(timeout=10) == {1, 2}


# Ends that are not good


async def test_a_failure_tells_type_message_and_traceback(client: Client) -> None:
    job = await client.enqueue(fail, "no such user")
    with pytest.raises(JobFailed) as failed:
        await job.result(timeout=10)
    error = failed.value
    assert type(error) is JobFailed
    assert (error.reason, error.type, error.message) == ("failed", "LookupError", "no such user")
    assert error.tries == 1
    assert "raise LookupError(text)" in error.traceback
    assert str(job.id) in str(error)


async def test_a_time_out_is_a_failure_of_its_own_type(client: Client) -> None:
    job = await client.options(timeout=0.1).enqueue(sleep, 30)
    with pytest.raises(JobTimeout) as failed:
        await job.result(timeout=10)
    assert isinstance(failed.value, JobFailed)
    assert (failed.value.reason, failed.value.type) == ("timeout", "TimeoutError")


async def test_a_time_out_of_the_wait_is_not_one_of_the_job(client: Client) -> None:
    job = await client.enqueue(sleep, 0.5)
    with pytest.raises(
        TimeoutError, match=r"has no result after 0\.05 s: it still waits or runs\."
    ):
        await job.result(timeout=datetime.timedelta(milliseconds=50))
    with pytest.raises(TimeoutError):
        await job.result(timeout=0)
    assert await job.result(timeout=10) == 0.5
    assert await job.result(timeout=1) == 0.5


# Nothing to wait for


@pytest.mark.servers
async def test_an_id_that_never_was_has_no_result(server: Server) -> None:
    async with Client(server.url()) as client, asyncio.timeout(NOTICED_S):
        ids = ("1-1", "nonsense", f"{2**70}-0")
        waits = [client.job(job_id).result() for job_id in ids]
        for error in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(error, ResultNotFound)


async def test_a_result_that_is_not_kept_is_waited_for_no_longer_than_the_job(
    client: Client,
) -> None:
    async with asyncio.timeout(NOTICED_S):
        job = await client.enqueue(unkept, 0.1)
        with pytest.raises(ResultNotFound, match=r"keep_result=0"):
            await job.result()


async def test_a_result_that_has_expired_is_not_found(client: Client, valkey: Server) -> None:
    job = await client.options(keep_result=0.05).enqueue(echo, 1)
    queue = Queue(valkey)
    await eventually(lambda: queue.length() == 0 and queue.result_ttl_ms(job.id) == -2)
    async with asyncio.timeout(NOTICED_S):
        with pytest.raises(ResultNotFound, match="has expired"):
            await job.result()


async def test_a_thousand_results_one_after_the_other_are_all_found(client: Client) -> None:
    async with asyncio.timeout(30):
        for n in range(1_000):
            job = await client.enqueue(echo, n)
            assert await job.result() == n


@pytest.mark.servers
async def test_a_thousand_results_at_once_are_all_found(server: Server) -> None:
    async with working(server, echo) as (client, _), asyncio.timeout(30):

        async def one(n: int) -> Any:
            return await (await client.enqueue(echo, n)).result()

        assert await asyncio.gather(*map(one, range(1_000))) == list(range(1_000))
        assert not client._results._waits


# Several waiters


async def test_many_wait_for_one_job(client: Client) -> None:
    job = await client.enqueue(sleep, 0.2)
    others = [client.job(job.id, returns=float) for _ in range(50)]
    waits = [asyncio.ensure_future(each.result()) for each in (job, *others)]
    await asyncio.sleep(0)
    waits[0].cancel()
    waits[7].cancel()
    found = await asyncio.gather(*waits, return_exceptions=True)
    assert [n for n, each in enumerate(found) if isinstance(each, asyncio.CancelledError)] == [0, 7]
    assert found.count(0.2) == 49
    assert await job.result() == 0.2


async def test_a_waiter_that_is_cancelled_leaves_nothing_behind(client: Client) -> None:
    job = await client.enqueue(sleep, 0.3)
    wait = asyncio.ensure_future(job.result())
    await eventually(lambda: len(client._results._waits) == 1)
    wait.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wait
    assert not client._results._waits
    assert await job.result(timeout=10) == 0.3


async def test_all_waiters_of_a_failure_are_told(client: Client) -> None:
    job = await client.enqueue(fail, "x")
    found = await asyncio.gather(*(job.result() for _ in range(5)), return_exceptions=True)
    assert [type(each) for each in found] == [JobFailed] * 5


class Carrier:
    """A serializer of the user's own."""

    def dumps(self, value: Any, /) -> bytes:
        return b"own:" + msgspec.msgpack.encode(value)

    def loads(self, data: bytes, /) -> Any:
        if not data.startswith(b"own:"):
            raise ValueError("not mine")
        return msgspec.msgpack.decode(data[4:])


async def test_a_serializer_of_the_users_own_carries_both_ways(valkey: Server) -> None:
    async with working(valkey, echo, serializer=Carrier()) as (client, _):
        assert await (await client.enqueue(echo, [1, b"x"])).result(timeout=10) == [1, b"x"]
        plain = Client(valkey.url())
        job = await plain.enqueue(echo, 1)
        with pytest.raises(JobFailed, match="undecodable"):
            await job.result(timeout=10)
        await plain.close()
