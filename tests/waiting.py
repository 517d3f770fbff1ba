"""Waiting on conditions, never for a fixed time."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 0.01


async def eventually(condition: Callable[[], T | Awaitable[T]], timeout: float = 10) -> T:
    """The first true value of `condition`, plain or async; an exception of it is not caught.

    Raises AssertionError with the last value after `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        _check(deadline, timeout, condition, value)
        await asyncio.sleep(PAUSE_S)


def eventually_sync(condition: Callable[[], T], timeout: float = 10) -> T:
    """`eventually` for tests without a loop."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        _check(deadline, timeout, condition, value)
        time.sleep(PAUSE_S)
    return value


def _check(deadline: float, timeout: float, condition: object, value: object) -> None:
    if time.monotonic() > deadline:
        name = getattr(condition, "__qualname__", condition)
        raise AssertionError(f"{name} still gave {value!r} after {timeout} s")
