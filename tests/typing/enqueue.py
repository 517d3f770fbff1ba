"""What the checkers say of `enqueue`, `call`, `enqueue_many` and handles.

Each call that must be refused is marked for both checkers, which report a mark without an error:
so a wrong call that is accepted fails the check, too.
"""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, assert_type

from jobs import Greeter, add, awkward, bare, fetch, nothing, resize, send, sync, thumbnail, wrapped

import fastq
from fastq import Call, Client, Context, Job, Producer


async def a_handle_knows_the_result(client: Client) -> None:
    assert_type(await client.enqueue(add, 1, 2), Job[int])
    assert_type(await client.enqueue(add, 1, y=2), Job[int])
    assert_type(await client.enqueue(fetch, "a", retries=2), Job[bytes])
    assert_type(await client.enqueue(resize, "a"), Job[tuple[int, int]])
    assert_type(await client.enqueue(resize, "a", width=5), Job[tuple[int, int]])
    assert_type(await client.enqueue(thumbnail, "a"), Job[str])
    assert_type(await client.enqueue(nothing), Job[None])
    assert_type(await client.enqueue(bare, 1), Job[int])
    assert_type(await client.enqueue(send, "ada@x.org"), Job[list[str]])
    assert_type(await client.enqueue(sync, to="ada@x.org"), Job[list[str]])
    assert_type(await client.enqueue(wrapped, "a"), Job[str])
    assert_type(await client.enqueue(Greeter().greet, "Ada"), Job[str])
    assert_type(await client.enqueue(Greeter(), "Ada"), Job[bytes])
    assert_type(await client.enqueue(partial(add, y=2), 1), Job[int])
    assert_type(await client.enqueue("add", 1, anything=2), Job[Any])


async def parameters_may_have_any_name(client: Client) -> None:
    job = await client.enqueue(awkward, fn=1, self="a", timeout=2.5, job_id=b"")
    assert_type(job, Job[float])
    call = fastq.call(awkward, fn=1, self="a", timeout=2.5, job_id=b"")
    assert_type(call, Call[float])
    await client.enqueue("awkward", fn=1, self="a", timeout=2.5, job_id=b"")


async def wrong_arguments_are_refused(client: Client) -> None:
    await client.enqueue(add, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(add, 1, 2, 3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.enqueue(add, 1, "2")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(add, 1, z=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.enqueue(add, None, 1, 2)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.enqueue(fetch)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(fetch, "a", 2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(fetch, b"a")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.enqueue(fetch, "a", retries="2")  # type: ignore[arg-type, misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.enqueue(resize)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(resize, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(thumbnail)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(thumbnail, "a", "b")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(thumbnail, 1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.enqueue(nothing, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(bare, "1")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(send, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(sync)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(wrapped, 1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.enqueue(Greeter(), 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(Greeter().greet)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(awkward, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await client.enqueue()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    await client.enqueue(fn="add")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def calls_are_checked_where_they_are_made() -> None:
    assert_type(fastq.call(add, 1, 2), Call[int])
    assert_type(fastq.call(resize, "a", width=5), Call[tuple[int, int]])
    assert_type(fastq.call(fetch, "a"), Call[bytes])
    assert_type(fastq.call(thumbnail, "a"), Call[str])
    assert_type(fastq.call("add", 1, 2), Call[Any])
    fastq.call(add, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    fastq.call(add, 1, "2")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    fastq.call(resize, 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    fastq.call(fetch)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    fastq.call(thumbnail, "a", 1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    fastq.call(5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


async def many_calls_give_a_list_or_a_count(client: Client, handles: bool) -> None:
    calls = [fastq.call(add, i, i) for i in range(3)]
    assert_type(await client.enqueue_many(calls), list[Job[int]])
    assert_type(await client.enqueue_many(fastq.call(add, 1, i) for i in (1, 2)), list[Job[int]])
    assert_type(await client.enqueue_many(calls, handles=True), list[Job[int]])
    assert_type(await client.enqueue_many(calls, handles=False), int)
    assert_type(await client.enqueue_many(calls, handles=handles), list[Job[int]] | int)
    both: list[Call[int | str]] = [fastq.call(add, 1, 2), fastq.call(thumbnail, "a")]
    assert_type(await client.enqueue_many(both), list[Job[int | str]])
    assert_type(await client.enqueue_many({fastq.call("add", 1): 1}), list[Job[Any]])
    await client.enqueue_many([add])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.enqueue_many(calls[0])  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await client.enqueue_many(fastq.call(add, i) for i in (1, 2))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportUnknownArgumentType]
    await client.enqueue_many(calls, False)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def options_make_a_producer_of_the_same_kind(client: Client) -> None:
    mail = client.options(queue="mail", timeout=timedelta(minutes=1), keep_result=0)
    assert_type(mail, Producer)
    assert_type(await mail.enqueue(send, "ada@x.org"), Job[list[str]])
    assert_type(await mail.enqueue_many([fastq.call(send, "a")], handles=False), int)
    assert_type(await client.options(timeout=None).enqueue(add, 1, 2), Job[int])
    await mail.enqueue(send)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    client.options(queue=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.options(timeout="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.options(keep="1")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.options("mail")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def handles_are_as_good_as_what_made_them(client: Client, ctx: Context) -> None:
    assert_type(await (await client.enqueue(add, 1, 2)).result(timeout=5), int)
    assert_type(client.job("1-0"), Job[Any])
    assert_type(client.job("1-0", queue="mail", returns=int), Job[int])
    assert_type(await client.job("1-0", returns=list[int]).result(), list[int])
    # Neither checker has a name for this type's type; mypy says Job[Any] | Job[int].
    _maybe: Job[Any] = client.job("1-0", returns=int | None)
    assert_type(await ctx.client.enqueue(add, 1, 2), Job[int])
    _wide: Job[object] = await client.enqueue(add, 1, 2)
    _other: Job[str] = await client.enqueue(add, 1, 2)  # type: ignore[call-overload]  # pyright: ignore[reportAssignmentType]
    await client.job("1-0").result("5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.job(1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    client.job("1-0", returns=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


async def a_client_is_made_of_known_parts() -> None:
    async with Client("redis://localhost", queue="mail", connect_timeout=timedelta(seconds=1)) as c:
        assert_type(c, Client)
    assert_type(Client.from_settings(object()), Client)
    Client(port=6379)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Client(6379)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Client(serializer=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Client(connect_timeout="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def options_are_of_their_types(client: Client) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    producer = client.options(job_id="a", defer_by=5, expires=timedelta(hours=1), max_tries=3)
    assert_type(producer, Producer)
    assert_type(await producer.enqueue(add, 1, 2), Job[int])
    assert_type(await client.options(defer_until=due).enqueue(add, 1, 2), Job[int])
    assert_type(fastq.call(add, 1, 2).options(job_id="a", defer_until=due), Call[int])
    client.options(job_id=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.options(defer_by="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.options(defer_until=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.options(expires="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.options(max_tries="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    fastq.call(add, 1, 2).options(queue="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
