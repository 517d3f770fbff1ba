"""When a connection ends each waiter is told once, whatever the others do when they are told."""

from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from asking import GONE, Interrupt, ask, call
from fastq._core import ConnectionLost, NotSent, Waiter, Wire

pytestmark = pytest.mark.core


def test_sent_requests_are_lost_and_others_were_not_sent() -> None:
    wire = Wire()
    sent = [ask(wire), ask(wire, 2)]
    wire.take_output()
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
    wire.take_output()
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
    wire.take_output()
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


@pytest.mark.parametrize("kind", [ValueError, Interrupt])
def test_a_callback_that_raises_at_a_loss_keeps_nobody_from_being_told(
    kind: type[BaseException],
) -> None:
    wire = Wire()
    told: list[str] = []

    def raises(name: str, reply: Any) -> None:
        told.append(name)
        raise kind("mine")

    first, last = ask(wire), ask(wire)
    call(wire, partial(raises, "first"))
    call(wire, partial(raises, "second"))
    between = ask(wire)
    with pytest.raises(kind, match="mine"):
        wire.close(GONE)
    assert all(type(future.exception()) is NotSent for future in (first, last, between))
    assert told == ["first", "second"]
    wire.close(GONE)
    assert told == ["first", "second"]


@pytest.mark.parametrize("kind", [ValueError, Interrupt])
def test_a_callback_that_raises_leaves_feed_and_is_told_once(kind: type[BaseException]) -> None:
    wire = Wire()
    told: list[Any] = []

    def raises(reply: Any) -> None:
        told.append(reply)
        raise kind("mine")

    before = ask(wire)
    call(wire, raises)
    after = ask(wire)
    wire.take_output()
    with pytest.raises(kind, match="mine"):
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
    wire.take_output()
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
    wire.take_output()
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
    wire.take_output()
    wire.close(GONE)
    assert type(last.exception()) is ConnectionLost
    assert type(late[0].exception()) is NotSent
    assert wire.error is GONE


def test_a_waiter_of_no_kind_takes_no_reply() -> None:
    wire = Wire()
    wire.send(b"", Waiter())
    after = ask(wire)
    wire.take_output()
    with pytest.raises(NotImplementedError):
        wire.feed(b":1\r\n")
    wire.send(b"", Waiter())
    with pytest.raises(NotImplementedError):
        wire.close(GONE)
    assert type(after.exception()) is ConnectionLost
