"""What a function takes: wrong calls on both sides, kinds of callables, who gets the context."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import dataclasses
import datetime
import functools
import uuid
from collections.abc import Callable
from typing import Any

import pytest

import decoding
from annotated import keywords, nothing, plain
from calling import check_call, label
from fastq.context import Context
from fastq.decoders import (
    ArgumentsError,
    arguments_decoder,
    result_decoder,
    takes_context,
)
from fastq.errors import ConfigError
from fastq.serializers import resolve

pytestmark = pytest.mark.typing_checks


JSON = resolve("json")
PICKLE = resolve("pickle")
DAY = datetime.date(2020, 1, 2)
ID = uuid.UUID(int=1)


def add(x: int, y: int = 2) -> int: ...
def variadic(a: int, *more: datetime.date, **named: uuid.UUID) -> None: ...
def only_position(a: int, b: int = 0, /, c: int = 0) -> None: ...


def decode(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    payload = JSON.dump_call(args, kwargs)
    return arguments_decoder(fn, skip_first=False, codec=JSON)(payload)


MISFITS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (add, (), {}, "add() missing 1 required argument: 'x'"),
    (plain, (), {}, "plain() missing 2 required arguments: 'a' and 'b'"),
    (add, (1, 2, 3), {}, "add() takes 2 positional arguments but 3 were given"),
    (nothing, (1,), {}, "nothing() takes 0 positional arguments but 1 was given"),
    (add, (1,), {"z": 1}, "add() got an unexpected keyword argument 'z'"),
    (add, (1,), {"x": 1}, "add() got multiple values for argument 'x'"),
    (keywords, (1,), {}, "keywords() missing 1 required argument: 'b'"),
    (only_position, (), {"a": 1}, "only_position() got an unexpected keyword argument 'a'"),
    (variadic, (), {"x": ID}, "variadic() missing 1 required argument: 'a'"),
]


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "text"),
    MISFITS,
    ids=label,
)
def test_wrong_arguments_are_told_on_both_sides(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    with pytest.raises(TypeError) as wrong:
        check_call(fn, False, args, kwargs)
    assert str(wrong.value) == text
    for codec in (JSON, PICKLE):
        payload = codec.dump_call(args, kwargs)
        with pytest.raises(ArgumentsError) as unfit:
            arguments_decoder(fn, skip_first=False, codec=codec)(payload)
        assert str(unfit.value).startswith(f"{text}; it is {fn.__name__}(")


class Callables:
    def method(self, x: datetime.date) -> datetime.date: ...

    def __call__(self, x: datetime.date) -> datetime.date: ...

    @classmethod
    def of_class(cls, x: datetime.date) -> datetime.date: ...


@dataclasses.dataclass
class Unhashable:
    a: int = 1

    def __call__(self, x: datetime.date) -> datetime.date: ...


def two(y: int, x: datetime.date) -> datetime.date: ...


@functools.wraps(Callables.method)
def wrapped(*args: Any) -> Any: ...


@pytest.mark.parametrize(
    "fn",
    [
        Callables().method,
        Callables(),
        Callables.of_class,
        Unhashable(),
        functools.partial(two, 1),
        functools.partial(wrapped, Callables()),
    ],
    ids=["method", "object", "classmethod", "unhashable", "partial", "wrapped"],
)
def test_every_kind_of_callable_is_read(fn: Callable[..., Any]) -> None:
    check_call(fn, False, (1,), {})
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        check_call(fn, False, (1, 2), {})
    assert decode(fn, DAY) == ((DAY,), None)
    assert result_decoder(fn, JSON)(JSON.dump_value(DAY)) == DAY


def test_a_function_that_hides_its_signature_takes_anything() -> None:
    check_call(dict.fromkeys, False, (1,), {})
    check_call(type, False, (1, 2, 3), {"a": 1})
    assert decode(type, 1, 2, a=1) == ((1, 2), {"a": 1})
    assert takes_context(type) is False


def test_skipping_the_context_counts_only_the_arguments() -> None:
    check_call(decoding.dated, True, (DAY,), {})
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        check_call(decoding.dated, True, (1, 2, 3), {})
    with pytest.raises(TypeError, match="unexpected keyword argument 'ctx'"):
        check_call(decoding.dated, True, (1,), {"ctx": 1})


def by_class(anything: Context, x: int) -> None: ...
def bare(ctx, x): ...  # type: ignore[no-untyped-def]
def by_string(anything: "Context") -> None: ...  # noqa: UP037
def dotted(anything: "fastq.Context") -> None: ...  # type: ignore[name-defined]  # noqa: F821,UP037
def no_context(context, x): ...  # type: ignore[no-untyped-def]
def second(x: int, ctx: Context) -> None: ...
def by_star(*ctx: Context) -> None: ...
def by_keyword(*, ctx: Context) -> None: ...
def foreign(ctx: dict[str, Any]) -> None: ...
def maybe(ctx: Context | None) -> None: ...


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        *((by_class, True), (bare, True), (by_string, True), (dotted, True), (no_context, False)),
        *((decoding.dated, True), (decoding.with_module, True), (decoding.with_hidden, False)),
        *((second, False), (by_star, False), (by_keyword, False), (nothing, False)),
        *((functools.partial(by_class, x=1), True), (Callables().method, False)),
    ],
)
def test_the_context_goes_to_a_first_parameter_that_asks_for_it(
    fn: Callable[..., Any], expected: bool
) -> None:
    assert takes_context(fn) is expected


@pytest.mark.parametrize("fn", [foreign, maybe])
def test_a_ctx_of_another_type_is_a_config_error(fn: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{fn.__name__}\(\): its parameter ctx is annotated"):
        takes_context(fn)
