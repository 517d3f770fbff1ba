"""Whatever the replies are and wherever the socket cuts them, each waiter is told its own."""

import contextlib
from functools import partial
from typing import Any

import hiredis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fastq._core import CallbackWaiter, FutureWaiter, SettleBatch, Waiter, Wire
from reference import Error, Push, Request, Simple

pytestmark = pytest.mark.core

line = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=12)
whole = st.integers(-(2**63), 2**63 - 1)
simple = st.builds(Simple, line.map(str.encode))
leaves = (
    st.none() | st.booleans() | whole | st.binary(max_size=12) | simple | st.builds(Error, line)
)
replies = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
pushes = st.builds(Push, st.lists(replies, min_size=1, max_size=3).map(tuple))


def requests_of(kind: str, inner: st.SearchStrategy[Any], least: int, most: int) -> Any:
    return st.builds(
        Request, st.just(kind), st.lists(inner, min_size=least, max_size=most).map(tuple)
    )


requests = st.lists(
    requests_of("future", replies, 1, 1)
    | requests_of("callback", replies, 1, 1)
    | requests_of("list", replies, 1, 4)
    | requests_of("batch", replies, 4, 4)
    | requests_of("push", pushes, 1, 1),
    max_size=5,
)
Told = list[tuple[int, Any]]


class Recorder:
    """Stands for a future: notes what it is told."""

    def __init__(self, told: Told, place: int) -> None:
        self.note = partial(note, told, place)
        self.set_result = self.set_exception = self.note

    @staticmethod
    def done() -> bool:
        return False


def note(told: Told, place: int, reply: Any) -> None:
    told.append((place, reference.parsed(reply)))


def waiter(request: Request, told: Told, place: int) -> Waiter:
    if request.kind == "future":
        return FutureWaiter(Recorder(told, place))
    if request.kind == "list":
        return FutureWaiter(Recorder(told, place), len(request.replies))
    if request.kind == "callback":
        return CallbackWaiter(partial(note, told, place))
    batch = SettleBatch(b"stream", b"group", lambda _, reply: note(told, place, reply))
    batch.pack()
    return batch


def ask(requests: list[Request], told: Told) -> Wire:
    """A wire on which all requests were sent; pushes are not asked for."""
    pushed = iter([place for place, request in enumerate(requests) if request.kind == "push"])
    wire = Wire(lambda reply: note(told, next(pushed), Push(tuple(reference.parsed(reply)))))
    for place, request in enumerate(requests):
        if request.kind != "push":
            wire.send(b"", waiter(request, told, place))
    wire.take_output()
    return wire


def stream_of(requests: list[Request]) -> bytes:
    return b"".join(reference.render(reply) for request in requests for reply in request.replies)


def seen_as(requests: list[Request]) -> Told:
    """The reference's answer, with pushes in the form in which they are noted."""
    return [
        (place, Push(tuple(reference.parsed(what.parts))) if isinstance(what, Push) else what)
        for place, what in reference.told(requests)
    ]


@given(requests)
@settings(deadline=None, max_examples=60)
def test_a_cut_at_any_byte_changes_nothing(requests: list[Request]) -> None:
    data, expected = stream_of(requests), seen_as(requests)
    for cut in range(len(data) + 1):
        told: Told = []
        wire = ask(requests, told)
        wire.feed(data[:cut])
        assert told == expected[: len(told)], "told before its reply was whole"
        wire.feed(data[cut:])
        assert told == expected
        assert len(wire) == 0


@given(requests, st.integers(1, 5))
@settings(deadline=None)
def test_pieces_of_any_size_change_nothing(requests: list[Request], size: int) -> None:
    data, told = stream_of(requests), list[tuple[int, Any]]()
    wire = ask(requests, told)
    for start in range(0, len(data), size):
        wire.feed(memoryview(data)[start : start + size])
    assert told == seen_as(requests)
    asked = [request for request in requests if request.kind != "push"]
    assert wire.replies == sum(len(request.replies) for request in asked)


@given(requests, st.data())
@settings(deadline=None)
def test_a_loss_at_any_byte_is_told_to_all_who_still_wait(
    requests: list[Request], data: st.DataObject
) -> None:
    stream, told, expected = stream_of(requests), list[tuple[int, Any]](), seen_as(requests)
    wire = ask(requests, told)
    wire.feed(stream[: data.draw(st.integers(0, len(stream)))])
    answered = len(told)
    assert told == expected[:answered]
    wire.close(OSError("gone"))
    left = [place for place, _ in expected[answered:] if requests[place].kind != "push"]
    assert [place for place, _ in told[answered:]] == left
    assert all(str(error) == "gone" for _, error in told[answered:])


@pytest.mark.parametrize(
    "garbage",
    [b"HTTP/1.1 400 Bad Request\r\n", b"?\r\n", b"$-7\r\n", b"*x\r\n", b"\x00\x16\x03\x01"],
)
def test_bytes_that_are_no_replies_are_a_protocol_error(garbage: bytes) -> None:
    told: Told = []
    wire = ask([Request("callback", (1,))] * 2, told)
    with pytest.raises(hiredis.ProtocolError):
        wire.feed(b":1\r\n" + garbage)
    # What came before was good; what follows cannot be trusted, however good it looks.
    assert told == [(0, 1)]
    with pytest.raises(hiredis.ProtocolError):
        wire.feed(b":2\r\n")
    wire.close(OSError("garbage"))
    assert [place for place, _ in told] == [0, 1]


@given(st.binary(max_size=60))
@settings(deadline=None, max_examples=300)
def test_no_bytes_do_worse_than_to_raise(data: bytes) -> None:
    told: Told = []
    wire = ask([Request("callback", (1,)), Request("list", (1, 2))] * 3, told)
    # A map of RESP3 may have a key that no dict of Python takes: hiredis raises TypeError.
    with contextlib.suppress(hiredis.ProtocolError, TypeError):
        wire.feed(data)
    wire.close(OSError("over"))
    assert [place for place, _ in told] == list(range(6))


def test_an_error_that_is_no_utf8_is_still_told() -> None:
    told: Told = []
    wire = ask([Request("callback", (1,))], told)
    wire.feed(b"-ERR unknown command '\xff\xfe'\r\n")
    assert told == [(0, Error("ERR unknown command '\ufffd\ufffd'"))]
