"""What annotations do to arguments and results, usable ones and those that are not."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import logging
import pathlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict, TypeVar

import msgspec
import pytest

import decoding
from annotated import House, Owner, Room, guests, house, keywords, nothing, owners, plain
from fastq.decoders import (
    arguments_decoder,
    result_decoder,
)
from fastq.errors import SerializationError
from fastq.serializers import resolve

pytestmark = pytest.mark.typing_checks

JSON = resolve("json")
T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Shape(enum.Enum):
    SQUARE = (1, 1)


class Money(TypedDict):
    amount: decimal.Decimal


class Cat(msgspec.Struct):
    name: str


class Dog(msgspec.Struct):
    name: str


@dataclasses.dataclass
class Custom:
    path: pathlib.Path


class Tree(msgspec.Struct):
    children: list[Tree] = []


def call(args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> bytes:
    return JSON.dump_call(args, kwargs or {})


def decode(fn: Callable[..., Any], payload: bytes, *, skip_first: bool = False) -> Any:
    return arguments_decoder(fn, skip_first=skip_first, codec=JSON)(payload)


DAY = datetime.date(2020, 1, 2)
OWNER = Owner(born=DAY)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (pathlib.Path, "/x"),
        (list[pathlib.Path], ["/x"]),
        (dict[str, Custom], {"a": {"path": "/x"}}),
        (int | pathlib.Path, 1),
        (Cat | Dog, {"name": "x"}),
        (Owner | pathlib.Path, {"born": "2020-01-02"}),
        (Owner | bytes, "YQ=="),
        (Shape, [1, 1]),
        (bytes | str, "YQ=="),
        (datetime.datetime | str, "2020-01-02"),
        (collections.abc.Iterable[int], [1]),
        (Literal[1.5], 1.5),
        ("Nowhere", 1),
        ("list[Nowhere]", [1]),
        ("1 +", 1),
    ],
    ids=str,
)
def test_an_unusable_annotation_passes_what_json_gives_with_one_warning(
    annotation: Any, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fn(odd: Any, day: datetime.date) -> None: ...

    fn.__annotations__["odd"] = annotation
    decoder = arguments_decoder(fn, skip_first=False, codec=JSON)
    for kwargs in ({}, {"day": DAY}):
        args = (value,) if kwargs else (value, DAY)
        assert decoder(call(args, kwargs)) == (args, kwargs or None)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].name == "fastq.functions"
    assert "fn()" in caplog.text
    assert "parameter 'odd'" in caplog.text


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (object, [1]),
        (list[object], [1, "a"]),
        (T, 5),
        (Annotated[int, "unit"], 5),
        (Colour, Colour.RED),
        (Money, {"amount": decimal.Decimal("1.5")}),
        (Tree, Tree([Tree()])),
        (Literal["a", 1], "a"),
        ("datetime.date", DAY),
        ("list['datetime.date'] | None", [DAY]),
        ("Colour", Colour.RED),
    ],
    ids=str,
)
def test_a_usable_annotation_does_not_warn(
    annotation: Any, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fn(it: Any) -> None: ...

    fn.__annotations__["it"] = annotation
    assert decode(fn, call((value,))) == ((value,), None)
    assert caplog.records == []


def test_annotations_of_another_module_resolve_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    payload = call((DAY, datetime.datetime(2020, 1, 2)))
    expected = (DAY, datetime.datetime(2020, 1, 2))
    assert decode(decoding.dated, payload, skip_first=True) == (expected, None)
    assert decode(decoding.dated, call((DAY,)), skip_first=True) == ((DAY,), None)
    assert caplog.records == []
    assert decode(decoding.partly, call((1, DAY, [2]))) == ((1, DAY, [2]), None)
    assert [record.args[2] for record in caplog.records] == ["thing", "things"]  # type: ignore[index]


def test_a_local_class_is_found_where_the_function_closes_over_it() -> None:
    class Local(msgspec.Struct):
        a: int

    def fn(it: Local) -> None:
        assert Local is not None

    assert decode(fn, call((Local(1),))) == ((Local(1),), None)


async def coroutine() -> datetime.date: ...
def awaitable() -> collections.abc.Awaitable[datetime.date]: ...
def unsupported() -> pathlib.Path: ...
def unresolved() -> Nowhere: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("fn", "value", "expected"),
    [
        (coroutine, DAY, DAY),
        (awaitable, DAY, DAY),
        (keywords, b"x", b"x"),
        (owners, OWNER, OWNER),
        (house, House(OWNER), House(OWNER)),
        (guests, Room(1), Room(1)),
        (unsupported, "/x", "/x"),
        (unresolved, DAY, "2020-01-02"),
        (nothing, [1], [1]),
        (plain, 2**70, 2**70),
    ],
)
def test_a_result_becomes_what_the_function_returns(
    fn: Callable[..., Any], value: Any, expected: Any
) -> None:
    assert result_decoder(fn, JSON)(JSON.dump_value(value)) == expected


@pytest.mark.parametrize("data", [b'"x"', b"[", b"[" * 5000])
def test_a_result_of_another_type_says_what_was_expected(data: bytes) -> None:
    with pytest.raises(SerializationError, match=r"of coroutine\(\) is not the datetime.date"):
        result_decoder(coroutine, JSON)(data)
    if data != b'"x"':
        with pytest.raises(SerializationError, match="not JSON"):
            result_decoder(plain, JSON)(data)
