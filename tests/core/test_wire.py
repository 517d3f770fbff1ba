"""Replies find their waiters in order; each waiter is told once, also when the connection ends."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import hiredis
import pytest

from fastq._core import (
    CallbackWaiter,
    ConnectionLost,
    FutureWaiter,
    NotSent,
    ReplyError,
    Waiter,
    Wire,
)

pytestmark = pytest.mark.core

GONE = OSError("gone")


def ask(wire: Wire, count: int = 0) -> Future[Any]:
    """Sends a request whose waiter resolves a future; that of a thread, since it needs no loop."""
    future: Future[Any] = Future()
    wire.send(b"PING\r\n", FutureWaiter(future, count))
    return future


def call(wire: Wire, callback: Callable[[Any], object]) -> None:
    wire.send(b"PING\r\n", CallbackWaiter(callback))


def write(wire: Wire) -> bytes:
    return wire.take_output()


def close(wire: Wire, *_: object) -> None:
    wire.close(GONE)


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt is not."""


# Requests


def test_what_was_sent_is_taken_once_and_in_order() -> None:
    wire = Wire()
    assert not wire.unwritten
    assert wire.take_output() == b""
    for part in (b"one ", b"two ", b"three"):
        wire.send(part, CallbackWaiter(print))
    assert wire.unwritten
    assert len(wire) == 3
    assert wire.take_output() == b"one two three"
    assert not wire.unwritten
    assert wire.take_output() == b""
    assert len(wire) == 3


# Futures


async def test_a_future_of_asyncio_gets_its_reply() -> None:
    wire = Wire()
    good, bad = (asyncio.get_running_loop().create_future() for _ in range(2))
    for future in (good, bad):
        wire.send(b"GET", FutureWaiter(future))
    write(wire)
    wire.feed(b"$2\r\nok\r\n-ERR no\r\n")
    assert await good == b"ok"
    with pytest.raises(ReplyError, match="^ERR no$"):
        await bad


def test_callers_after_a_cancelled_one_get_their_own_replies() -> None:
    wire = Wire()
    futures = [ask(wire, count) for count in (0, 2, 0, 0, 3, 0)]
    write(wire)
    for cancelled in (0, 1, 4):
        futures[cancelled].cancel()
    wire.feed(b"".join(b":%d\r\n" % n for n in range(9)))
    assert [futures[place].result() for place in (2, 3, 5)] == [3, 4, 8]
    assert len(wire) == 0


def test_callers_cancelled_between_the_replies_of_a_list_are_passed_over() -> None:
    wire = Wire()
    first, second = ask(wire, 3), ask(wire)
    write(wire)
    wire.feed(b":1\r\n:2\r\n")
    first.cancel()
    wire.feed(b":3\r\n:4\r\n")
    assert second.result() == 4


def test_errors_stand_in_a_list_as_values() -> None:
    wire = Wire()
    future = ask(wire, 3)
    write(wire)
    wire.feed(b"+OK\r\n-ERR no\r\n*1\r\n-ERR inner\r\n")
    first, second, third = future.result()
    assert (first, str(second), str(third[0])) == (b"OK", "ERR no", "ERR inner")
    assert isinstance(second, ReplyError)


def test_a_list_of_one_reply_is_a_list() -> None:
    wire = Wire()
    future = ask(wire, 1)
    write(wire)
    wire.feed(b"-ERR no\r\n")
    assert [str(reply) for reply in future.result()] == ["ERR no"]


def test_a_list_cannot_have_fewer_than_no_replies() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FutureWaiter(Future(), -1)


def test_the_replies_that_came_before_a_loss_are_on_its_error() -> None:
    wire = Wire()
    part, none, single = ask(wire, 3), ask(wire, 2), ask(wire)
    write(wire)
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
    write(wire)
    wire.feed(b":1\r\n:2\r\n:3\r\n")
    assert (told, later.result()) == ([1, 2], 3)


# The end of a connection


def test_sent_requests_are_lost_and_others_were_not_sent() -> None:
    wire = Wire()
    sent = [ask(wire), ask(wire, 2)]
    write(wire)
    unsent = [ask(wire), ask(wire, 2)]
    wire.close(GONE)
    late = ask(wire)
    assert [type(future.exception()) for future in sent] == [ConnectionLost] * 2
    assert [type(future.exception()) for future in (*unsent, late)] == [NotSent] * 3
    assert {str(future.exception()) for future in (*sent, *unsent, late)} == {"gone"}
    assert (len(wire), wire.take_output(), wire.error) == (0, b"", GONE)


def test_an_answered_request_does_not_count_as_sent() -> None:
    wire = Wire()
    answered, sent = ask(wire), ask(wire)
    write(wire)
    wire.feed(b":1\r\n")
    unsent = ask(wire)
    wire.close(GONE)
    assert answered.result() == 1
    assert type(sent.exception()) is ConnectionLost
    assert type(unsent.exception()) is NotSent


def test_a_closed_wire_stays_closed_for_its_first_cause() -> None:
    wire = Wire()
    told: list[Any] = []
    call(wire, told.append)
    write(wire)
    wire.close(GONE)
    wire.close(OSError("later"))
    wire.feed(b":1\r\n")
    assert wire.error is GONE
    assert [type(error) for error in told] == [ConnectionLost]


def test_cancelled_callers_are_not_told_of_a_loss() -> None:
    wire = Wire()
    future, other = ask(wire), ask(wire)
    future.cancel()
    wire.close(GONE)
    assert future.cancelled()
    assert type(other.exception()) is NotSent


@pytest.mark.parametrize("error", [ValueError("mine"), Interrupt("mine")], ids=["error", "interrupt"])
def test_a_callback_that_raises_at_a_loss_keeps_nobody_from_being_told(
    error: BaseException
) -> None:
    wire = Wire()
    told: list[str] = []

    def raises(name: str, reply: Any) -> None:
        told.append(name)
        raise error

    first, last = ask(wire), ask(wire)
    call(wire, partial(raises, "first"))
    call(wire, partial(raises, "second"))
    between = ask(wire)
    with pytest.raises(type(error), match="mine"):
        wire.close(GONE)
    assert all(type(future.exception()) is NotSent for future in (first, last, between))
    assert told == ["first", "second"]
    wire.close(GONE)
    assert told == ["first", "second"]


@pytest.mark.parametrize("error", [ValueError("mine"), Interrupt("mine")], ids=["error", "interrupt"])
def test_a_callback_that_raises_leaves_feed_and_is_told_once(
    error: BaseException
) -> None:
    wire = Wire()
    told: list[Any] = []

    def raises(reply: Any) -> None:
        told.append(reply)
        raise error

    before = ask(wire)
    call(wire, raises)
    after = ask(wire)
    write(wire)
    with pytest.raises(type(error), match="mine"):
        wire.feed(b":1\r\n:2\r\n:3\r\n")
    assert before.result() == 1
    assert not after.done()
    wire.close(GONE)
    assert type(after.exception()) is ConnectionLost
    assert told == [2]


def test_a_callback_may_close_the_wire() -> None:
    wire = Wire()
    told: list[Any] = []

    def closes(reply: Any) -> None:
        told.append(reply)
        wire.close(GONE)

    call(wire, closes)
    after, several = ask(wire), ask(wire, 2)
    write(wire)
    unsent = ask(wire)
    wire.feed(b":1\r\n:2\r\n:3\r\n")
    assert told == [1]
    assert type(after.exception()) is type(several.exception()) is ConnectionLost
    assert type(unsent.exception()) is NotSent


def test_a_callback_may_send() -> None:
    wire = Wire()
    sent: list[Future[Any]] = []
    call(wire, lambda _: sent.append(ask(wire)))
    second = ask(wire)
    write(wire)
    wire.feed(b":1\r\n:2\r\n")
    assert second.result() == 2
    assert wire.take_output() == b"PING\r\n"
    wire.feed(b":3\r\n")
    assert sent[0].result() == 3


def test_a_callback_told_of_the_end_may_send_and_close() -> None:
    wire = Wire()
    late: list[Future[Any]] = []

    def again(reply: Any) -> None:
        wire.close(OSError("again"))
        late.append(ask(wire))

    call(wire, again)
    last = ask(wire)
    write(wire)
    wire.close(GONE)
    assert type(last.exception()) is ConnectionLost
    assert type(late[0].exception()) is NotSent
    assert wire.error is GONE


def test_a_waiter_of_no_kind_takes_no_reply() -> None:
    wire = Wire()
    wire.send(b"", Waiter())
    after = ask(wire)
    write(wire)
    with pytest.raises(NotImplementedError):
        wire.feed(b":1\r\n")
    wire.send(b"", Waiter())
    with pytest.raises(NotImplementedError):
        wire.close(GONE)
    assert type(after.exception()) is ConnectionLost


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
    write(wire)
    wire.feed(b">2\r\n+invalidate\r\n_\r\n:1\r\n>1\r\n+x\r\n")
    assert pushed == [[b"invalidate", None], [b"x"]]
    assert future.result() == 1
    assert wire.replies == 1


def test_pushes_without_a_callback_are_passed_over() -> None:
    wire = Wire()
    future = ask(wire)
    write(wire)
    wire.feed(b">1\r\n+x\r\n:1\r\n")
    assert future.result() == 1


def test_a_push_may_close_the_wire() -> None:
    wire = Wire(lambda _: close(wire))
    future = ask(wire)
    write(wire)
    wire.feed(b">1\r\n+x\r\n:1\r\n")
    assert type(future.exception()) is ConnectionLost


def test_a_push_that_raises_leaves_feed() -> None:
    def raises(push: Any) -> None:
        raise ValueError("mine")

    wire = Wire(raises)
    future = ask(wire)
    write(wire)
    with pytest.raises(ValueError, match="mine"):
        wire.feed(b">1\r\n+x\r\n:1\r\n")
    wire.close(GONE)
    assert type(future.exception()) is ConnectionLost
