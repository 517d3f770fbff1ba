"""JSON without losses, for values that orjson refuses or might alter.

Three duties: 1. refuse what JSON would drop or change (`check`), 2. encode the rest by msgspec's
and pydantic's rules (`encode`), 3. say in one line why (`Lossy`). It is the slow path (some 0.5 µs
a value), so it can afford to look at every value.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NoReturn

import msgspec

from fastq.conversion import converter, dump_model, is_model, load_model, moment, to_plain

MAX_DEPTH = 254  # orjson's own limit, so that both paths accept the same values
_MAX_BITS = 14_000  # msgspec reads no integer of over 4,300 characters

_IDENTITY: Any = object.__eq__

Look = Callable[[Any], Collection[Any]]

_encoder = msgspec.json.Encoder(enc_hook=to_plain)
_ordered = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic")


class Lossy(Exception):
    """The value would not arrive as it is; the text says why."""


def encode(value: object) -> bytes:
    """`value` as JSON.

    Raises `Lossy`, or whatever msgspec, pydantic or the value's own methods raise.
    """
    check(value)
    return _encoder.encode(value)


def check(value: object) -> None:
    """Raises `Lossy` if anything in `value` would be dropped or changed by JSON."""
    # A stack of our own: a value of 254 levels must not depend on how deep the caller is.
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        part, depth = stack.pop()
        kind: Any = type(part)
        children = (_LOOKS.get(kind) or _look(kind))(part)
        if children:
            if depth > MAX_DEPTH:
                raise Lossy(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
            stack.extend([(child, depth + 1) for child in children])


def _leaf(value: Any) -> tuple[()]:
    return ()


def _float(value: float) -> tuple[()]:
    if not math.isfinite(value):
        raise Lossy(f"JSON has no {float(value)!r}")
    return ()


def _int(value: int) -> tuple[()]:
    if value.bit_length() > _MAX_BITS:
        raise Lossy(f"an integer of {value.bit_length()} bits is too large")
    return ()


def _moment(value: Any) -> tuple[()]:
    moment(value)
    return ()


def _items(value: Collection[Any]) -> Collection[Any]:
    return value


def _mapping(value: dict[Any, Any]) -> Collection[Any]:
    if any(type(key) is not str for key in value):
        check(list(value))
        names = msgspec.to_builtins(dict.fromkeys(value), str_keys=True)
        if len(names) < len(value):
            raise Lossy("two of its keys are the same in JSON, where keys are strings")
    return value.values()


def _enum(value: enum.Enum) -> Collection[Any]:
    return (value.value,)


def _of_struct(kind: Any) -> Look:
    return functools.partial(_fields, kind.__struct_fields__)


def _of_dataclass(kind: Any) -> Look:
    if any("INITVAR" in repr(each._field_type) for each in kind.__dataclass_fields__.values()):
        return _refuse(f"{kind.__name__} has an InitVar, which it does not keep")
    return functools.partial(_fields, [field.name for field in dataclasses.fields(kind)])


def _of_attrs(kind: Any) -> Look:
    names = [field.name for field in kind.__attrs_attrs__]
    for name in names:
        if name.startswith("_"):  # msgspec leaves them out (of attrs classes only)
            return _refuse(f"the private field {name!r} of {kind.__name__} would be dropped")
    return functools.partial(_fields, names)


def _refuse(reason: str) -> Look:
    def look(value: Any) -> NoReturn:
        raise Lossy(reason)

    return look


def _fields(names: Iterable[str], value: Any) -> Collection[Any]:
    kind = type(value)
    values = []
    for name in names:
        part = getattr(value, name, msgspec.UNSET)
        if part is not msgspec.UNSET:
            values.append(part)
        elif not _unset_by_default(kind, name):
            raise Lossy(f"the field {name!r} of {kind.__name__} is not set and would be dropped")
    if _is_rebuilt_by_code(kind):
        _check_rebuilt(value, kind)
    return values


def _unset_by_default(kind: Any, name: str) -> bool:
    if issubclass(kind, msgspec.Struct):
        fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
        return fields[name] is msgspec.UNSET
    return getattr(kind, name, None) is msgspec.UNSET


def _is_rebuilt_by_code(kind: type) -> bool:
    marks = ("__post_init__", "__attrs_post_init__", "__pydantic_validator__")
    return any(hasattr(kind, mark) for mark in marks)


def _check_rebuilt(value: Any, kind: type) -> None:
    # `__post_init__` runs again on the worker: a second hash of a password is another password.
    rebuild = _rebuild(kind)
    text = _ordered.encode(value)
    if rebuild is not None and _ordered.encode(rebuild(text)) != text:
        raise Lossy(f"{kind.__name__} changes when it is built anew from its fields")


def _model(value: Any) -> Collection[Any]:
    plain = dump_model(value)
    check(plain)
    again = load_model(type(value), _encoder.encode(plain))
    for name in (*type(value).model_fields, *(value.model_extra or ())):
        if not _same(getattr(value, name), getattr(again, name, None)):
            kind = type(value).__name__
            raise Lossy(f"the field {name!r} of {kind} would be dropped or changed")
    return ()


def _same(one: Any, other: Any) -> bool:
    kind: Any = type(one)
    # Objects that are only equal to themselves can tell us nothing.
    return kind is type(other) and (bool(one == other) or kind.__eq__ is _IDENTITY)


@functools.lru_cache(maxsize=512)
def _look(kind: type) -> Look:
    if is_model(kind):
        return _model
    if issubclass(kind, msgspec.Struct):
        return _of_struct(kind)
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    if hasattr(kind, "__attrs_attrs__"):
        return _of_attrs(kind)
    # An IntEnum is also an int: the order counts.
    for base, look in _BASES:
        if issubclass(kind, base):
            return look
    return _leaf


@functools.lru_cache(maxsize=512)
def _rebuild(kind: type) -> Callable[[bytes], Any] | None:
    return converter(kind)


_BASES: tuple[tuple[type | tuple[type, ...], Look], ...] = (
    (enum.Enum, _enum),
    (dict, _mapping),
    ((list, tuple, set, frozenset), _items),
    (float, _float),
    (int, _int),
    ((datetime.date, datetime.time), _moment),
)
_LOOKS: dict[type, Look] = {
    **dict.fromkeys((str, bool, type(None), bytes), _leaf),
    **dict.fromkeys((list, tuple, set, frozenset), _items),
    dict: _mapping,
    float: _float,
    int: _int,
}
