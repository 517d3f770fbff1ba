"""Job functions of every kind, for the other files here."""

import asyncio
from datetime import datetime
from typing import assert_type

import fastq
from fastq import Client, Context


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


async def fetch(url: str, *, retries: int = 3) -> bytes:
    return url.encode() * retries


def resize(ctx: Context, path: str, width: int = 100) -> tuple[int, int]:
    return width, len(path)


def thumbnail(path: str) -> str:
    return path


async def nothing() -> None: ...


async def awkward(fn: int, self: str, timeout: float, job_id: bytes) -> float:
    return fn + timeout + len(self) + len(job_id)


@fastq.job
async def bare(ctx: Context, x: int) -> int:
    return x


@fastq.job(timeout=30, keep_result=None, name="mail")
async def send(ctx: Context, to: str) -> list[str]:
    return [to]


@fastq.job(timeout=None)
def sync(to: str) -> list[str]:
    return [to]


wrapped = fastq.job(thumbnail, name="small", keep_result=0)


class Greeter:
    async def greet(self, name: str) -> str:
        return name

    async def __call__(self, ctx: Context, name: str) -> bytes:
        return name.encode()


async def decorated_functions_are_what_they_were() -> None:
    # A decorated function is called as before, so its parameters are still checked.
    ctx = await a_context()
    assert_type(await bare(ctx, 1), int)
    assert_type(await send(ctx, to="ada@x.org"), list[str])
    assert_type(sync("ada@x.org"), list[str])
    assert_type(wrapped(path="cat"), str)
    await bare(ctx)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await send(ctx, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    sync(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    wrapped(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def options_of_the_decorator_are_checked() -> None:
    fastq.job(timeout="30")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    fastq.job(time_out=30)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    fastq.job(1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]


async def a_context() -> Context:
    return await asyncio.Future[Context]()


async def nothing_of_a_context_is_any_but_its_state(ctx: Context) -> None:
    assert_type(ctx.job_id, str)
    assert_type(ctx.function, str)
    assert_type(ctx.queue, str)
    assert_type(ctx.tries, int)
    assert_type(ctx.enqueued_at, datetime)
    assert_type(ctx.client, Client)
    print(ctx.deadline)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownArgumentType, reportUnknownMemberType]
    ctx.tries = 2  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
