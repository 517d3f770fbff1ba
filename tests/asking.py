"""Requests on a wire, and who waits for their replies."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from fastq._core import CallbackWaiter, FutureWaiter, Wire

GONE = OSError("gone")


def ask(wire: Wire, count: int = 0) -> Future[Any]:
    """Sends a request whose waiter resolves a future; that of a thread, since it needs no loop."""
    future: Future[Any] = Future()
    wire.send(b"PING\r\n", FutureWaiter(future, count))
    return future


def call(wire: Wire, callback: Callable[[Any], object]) -> None:
    wire.send(b"PING\r\n", CallbackWaiter(callback))


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt is not."""
