"""Payloads on their way in: arguments and results by annotation, and what does not fit."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import datetime
import functools
import pickle
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from annotated import (
    Guest,
    House,
    Owner,
    Room,
    guests,
    house,
    keywords,
    nothing,
    owners,
    picky,
    plain,
)
from calling import check_call, label
from fastq.decoders import (
    ArgumentsError,
    UndecodableError,
    arguments_decoder,
    result_decoder,
)
from fastq.serializers import resolve

pytestmark = pytest.mark.typing_checks

JSON = resolve("json")
PICKLE = resolve("pickle")


def add(x: int, y: int = 2) -> int: ...
def variadic(a: int, *more: datetime.date, **named: uuid.UUID) -> None: ...
def only_position(a: int, b: int = 0, /, c: int = 0) -> None: ...
def awkward(fn: int, self: int, timeout: int, data: int) -> None: ...


def call(args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> bytes:
    return JSON.dump_call(args, kwargs or {})


def decode(fn: Callable[..., Any], payload: bytes) -> Any:
    return arguments_decoder(fn, skip_first=False, codec=JSON)(payload)


DAY = datetime.date(2020, 1, 2)
OWNER = Owner(born=DAY)
ID = uuid.UUID(int=1)

FITTING: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
    (add, (1, 2), {}),
    (add, (1,), {}),
    (add, (1,), {"y": 3}),
    (add, (), {"x": 1}),
    (plain, (1, [None, "a"]), {}),
    (nothing, (), {}),
    (keywords, (1,), {"b": b"\xff"}),
    (keywords, (), {"a": 1, "b": b"\xff", "c": b"x"}),
    (variadic, (1,), {}),
    (variadic, (1, DAY, DAY), {"x": ID, "more": ID}),
    (only_position, (1, 2, 3), {}),
    (only_position, (1,), {"c": 3}),
    (awkward, (), {"fn": 1, "self": 2, "timeout": 3, "data": 4}),
    (owners, ([OWNER], None), {}),
    (owners, ([],), {"first": OWNER}),
    (guests, (OWNER, [Room(2, [Guest(age=1)])], 5), {}),
    (guests, (Guest(age=4), []), {"n": Guest(age=1)}),
    (house, (House(OWNER, [1]),), {}),
]


@pytest.mark.parametrize(("fn", "args", "kwargs"), FITTING)
def test_arguments_arrive_as_annotated(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    check_call(fn, False, args, kwargs)
    assert decode(fn, call(args, kwargs)) == (args, kwargs or None)


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "text"),
    [
        (add, ("a",), {}, "add() argument 'x': Expected `int`, got `str`"),
        (add, (1, None), {}, "add() argument 'y': Expected `int`, got `null`"),
        (add, (1,), {"y": [1]}, "add() argument 'y': Expected `int`, got `array`"),
        (variadic, (1, "x"), {}, "variadic() argument '*more': Invalid RFC3339"),
        (variadic, (1,), {"q": "x"}, "variadic() argument 'q': Invalid UUID"),
        (owners, ([{"born": "x"}], None), {}, "owners() argument 'all': 1 validation error"),
        (guests, ({}, [], 1), {}, "guests() argument 'who': 2 validation errors"),
        (picky, ({"a": 1},), {}, "picky() argument 'it': picky"),
    ],
    ids=label,
)
def test_a_failed_conversion_names_function_and_parameter(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(ArgumentsError) as unfit:
        decode(fn, call(args, kwargs))
    assert str(unfit.value).startswith(text)


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"[", b"[1,", b"nul", b"5", b"null", b'"a"', b"{}", b'{"x":1}', b'{"a":1,"k":{}}'),
        *(b'{"a":[1],"k":{},"z":1}', b"[1,2]x", b"[NaN,1]", b'["a","\xff"]', b'["\\ud800",1]'),
        *(b"[" * 5000, b"[" + b"[" * 5000, b'{"a":[1],"k":{"y":"\xff"}}', b"[1,2,3,\xff]"),
    ],
)
@pytest.mark.parametrize("fn", [add, plain, keywords, variadic])
def test_what_is_no_call_is_undecodable(fn: Callable[..., Any], payload: bytes) -> None:
    with pytest.raises(UndecodableError, match=rf"{fn.__name__}\(\): "):
        decode(fn, payload)


@pytest.mark.parametrize("data", [b"", b"x", pickle.dumps(5), pickle.dumps((1, {})), b"cos\nno\n."])
def test_a_broken_pickle_is_undecodable(data: bytes) -> None:
    with pytest.raises(UndecodableError):
        arguments_decoder(add, skip_first=False, codec=PICKLE)(data)


def test_space_around_a_call_does_no_harm() -> None:
    assert decode(add, b" [1, 2]\n") == ((1, 2), None)
    assert decode(add, b' {"a": [1], "k": {"y": 2}}') == ((1,), {"y": 2})


def test_with_pickle_nothing_is_converted() -> None:
    payload = PICKLE.dump_call(("a",), {"y": OWNER})
    assert arguments_decoder(add, skip_first=False, codec=PICKLE)(payload) == (("a",), {"y": OWNER})
    assert result_decoder(add, PICKLE)(PICKLE.dump_value("a")) == "a"


@given(
    st.sampled_from(FITTING),
    st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=3)), min_size=1, max_size=4),
    st.integers(0, 200),
)
def test_a_garbled_payload_never_raises_anything_else(
    case: tuple[Any, Any, Any], edits: list[tuple[int, bytes]], cut: int
) -> None:
    fn, args, kwargs = case
    payload = call(args, kwargs)
    for at, patch in edits:
        payload = payload[:at] + patch + payload[at + len(patch) :]
    for garbled in (payload, payload[:cut]):
        try:
            got, named = decoder_of(fn)(garbled)
        except (UndecodableError, ArgumentsError):
            continue
        check_call(fn, False, got, named or {})


@functools.cache
def decoder_of(fn: Callable[..., Any]) -> Any:
    return arguments_decoder(fn, skip_first=False, codec=JSON)
