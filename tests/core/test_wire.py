"""Replies find their waiters in order, and pushes their callback."""

import asyncio
from concurrent.futures import Future
from typing import Any

import hiredis
import pytest

from asking import GONE, ask
from fastq._core import (
    CallbackWaiter,
    ConnectionLost,
    FutureWaiter,
    NotSent,
    ReplyError,
    Wire,
)

pytestmark = pytest.mark.core


# Requests


def test_what_was_sent_is_taken_once_and_in_order() -> None:
    wire = Wire()
    assert (wire.unwritten, wire.take_output()) == (False, b"")
    for part in (b"one ", b"two ", b"three"):
        wire.send(part, CallbackWaiter(print))
    assert (wire.unwritten, len(wire)) == (True, 3)
    assert wire.take_output() == b"one two three"
    assert (wire.unwritten, wire.take_output()) == (False, b"")
    assert len(wire) == 3


# Futures


async def test_a_future_of_asyncio_gets_its_reply() -> None:
    wire = Wire()
    good, bad = (asyncio.get_running_loop().create_future() for _ in range(2))
    for future in (good, bad):
        wire.send(b"GET", FutureWaiter(future))
    wire.take_output()
    wire.feed(b"$2\r\nok\r\n-ERR no\r\n")
    assert await good == b"ok"
    with pytest.raises(ReplyError, match="^ERR no$"):
        await bad


def test_callers_after_a_cancelled_one_get_their_own_replies() -> None:
    wire = Wire()
    futures = [ask(wire, count) for count in (0, 2, 0, 0, 3, 0)]
    wire.take_output()
    for cancelled in (0, 1, 4):
        futures[cancelled].cancel()
    wire.feed(b"".join(b":%d\r\n" % n for n in range(9)))
    assert [futures[place].result() for place in (2, 3, 5)] == [3, 4, 8]
    assert len(wire) == 0


def test_callers_cancelled_between_the_replies_of_a_list_are_passed_over() -> None:
    wire = Wire()
    first, second = ask(wire, 3), ask(wire)
    wire.take_output()
    wire.feed(b":1\r\n:2\r\n")
    first.cancel()
    wire.feed(b":3\r\n:4\r\n")
    assert second.result() == 4


def test_errors_stand_in_a_list_as_values() -> None:
    wire = Wire()
    future = ask(wire, 3)
    wire.take_output()
    wire.feed(b"+OK\r\n-ERR no\r\n*1\r\n-ERR inner\r\n")
    first, second, third = future.result()
    assert (first, str(second), str(third[0])) == (b"OK", "ERR no", "ERR inner")
    assert isinstance(second, ReplyError)


def test_a_list_of_one_reply_is_a_list() -> None:
    wire = Wire()
    future = ask(wire, 1)
    wire.take_output()
    wire.feed(b"-ERR no\r\n")
    assert [str(reply) for reply in future.result()] == ["ERR no"]


def test_a_list_cannot_have_fewer_than_no_replies() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FutureWaiter(Future(), -1)


def test_the_replies_that_came_before_a_loss_are_on_its_error() -> None:
    wire = Wire()
    part, none, single = ask(wire, 3), ask(wire, 2), ask(wire)
    wire.take_output()
    wire.feed(b":1\r\n-ERR no\r\n")
    wire.close(GONE)
    lost = part.exception()
    assert isinstance(lost, ConnectionLost)
    assert [str(reply) for reply in lost.replies] == ["1", "ERR no"]
    assert not hasattr(none.exception(), "replies")
    assert not hasattr(single.exception(), "replies")


def test_a_waiter_sent_twice_takes_two_replies_and_no_more() -> None:
    wire = Wire()
    told: list[Any] = []
    waiter = CallbackWaiter(told.append)
    wire.send(b"", waiter)
    wire.send(b"", waiter)
    later = ask(wire)
    wire.take_output()
    wire.feed(b":1\r\n:2\r\n:3\r\n")
    assert (told, later.result()) == ([1, 2], 3)


# Replies that nobody asked for


def test_a_reply_that_nobody_waits_for_is_a_protocol_error() -> None:
    wire = Wire()
    with pytest.raises(hiredis.ProtocolError, match="ERR max number of clients reached"):
        wire.feed(b"-ERR max number of clients reached\r\n")


def test_a_request_that_was_not_written_gets_no_reply() -> None:
    wire = Wire()
    future = ask(wire)
    with pytest.raises(hiredis.ProtocolError, match="nothing was waiting for"):
        wire.feed(b":1\r\n")
    wire.close(GONE)
    assert type(future.exception()) is NotSent


def test_pushes_go_to_their_own_callback() -> None:
    pushed: list[Any] = []
    wire = Wire(pushed.append)
    future = ask(wire)
    wire.take_output()
    wire.feed(b">2\r\n+invalidate\r\n_\r\n:1\r\n>1\r\n+x\r\n")
    assert pushed == [[b"invalidate", None], [b"x"]]
    assert future.result() == 1
    assert wire.replies == 1


def test_pushes_without_a_callback_are_passed_over() -> None:
    wire = Wire()
    future = ask(wire)
    wire.take_output()
    wire.feed(b">1\r\n+x\r\n:1\r\n")
    assert future.result() == 1


def test_a_push_may_close_the_wire() -> None:
    wire = Wire(lambda _: wire.close(GONE))
    future = ask(wire)
    wire.take_output()
    wire.feed(b">1\r\n+x\r\n:1\r\n")
    assert type(future.exception()) is ConnectionLost


def test_a_push_that_raises_leaves_feed() -> None:
    def raises(push: Any) -> None:
        raise ValueError("mine")

    wire = Wire(raises)
    future = ask(wire)
    wire.take_output()
    with pytest.raises(ValueError, match="mine"):
        wire.feed(b">1\r\n+x\r\n:1\r\n")
    wire.close(GONE)
    assert type(future.exception()) is ConnectionLost
