"""What msgspec and pydantic know of types: how a value becomes plain, and JSON the annotated type.

Pydantic is never imported here: a model can only turn up if the user has imported it.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import functools
import inspect
import sys
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

Convert = Callable[[Any], Any]

_SCALARS = frozenset(
    {int, str, float, bool, type(None), uuid.UUID, decimal.Decimal}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)
_CONTAINERS = frozenset({list, dict, set, frozenset, tuple, typing.Union, types.UnionType})


def is_model(kind: type) -> bool:
    """Whether `kind` is a pydantic model (version 2)."""
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


def dump_model(model: Any) -> Any:
    """A pydantic model as plain JSON values, under its field names rather than their aliases."""
    # Without warnings: the round trip in `lossless` is the judge, and it raises.
    return model.model_dump(mode="json", by_alias=False, warnings=False)


def load_model(kind: Any, data: bytes) -> Any:
    """JSON into a model. Raises pydantic's `ValidationError`, which is a `ValueError`."""
    # From JSON and not from Python values: strict models and `val_json_bytes` tell them apart.
    return kind.model_validate_json(data, **_by_names(kind.model_validate_json.__func__))


def to_plain(value: Any) -> Any:
    """msgspec's `enc_hook`. Raises TypeError for what nobody can carry."""
    for base, strip in _STRIPS:
        if isinstance(value, base):
            return strip(value)
    if is_model(type(value)):
        return dump_model(value)
    raise TypeError(f"values of type {type(value).__name__} are not supported")


def moment(value: datetime.datetime | datetime.date | datetime.time) -> str:
    """ISO 8601 text of a date or time, also orjson's hook for them.

    Raises ValueError if the text would lose some of it, TypeError for any other value.
    """
    kind = type(value)
    if kind not in _MOMENTS:
        return _unusual_moment(value)
    if not isinstance(value, datetime.date) or isinstance(value, datetime.datetime):
        _check_offset(value)
    return value.isoformat()


def converter(annotation: Any) -> Convert | None:
    """From JSON bytes to the annotated type, or None if neither msgspec nor pydantic can."""
    if is_native(annotation):
        return msgspec.json.Decoder(annotation, dec_hook=from_plain).decode
    return _adapter(annotation)


def is_native(annotation: Any) -> bool:
    """Whether msgspec converts to this, with models only where a hook of ours sees them."""
    try:
        info = msgspec.inspect.type_info(annotation)
        msgspec.json.Decoder(annotation)
    except Exception:  # a broken annotation raises whatever its author's code raises
        return False
    return not any(_is_foreign(node) for node in _nodes(info, set()))


def from_plain(kind: type, value: Any) -> Any:
    """msgspec's `dec_hook`, asked for models and for `object` only."""
    return load_model(kind, msgspec.json.encode(value)) if is_model(kind) else value


def _unusual_moment(value: Any) -> str:
    base: Any = next((kind for kind in _MOMENTS if isinstance(value, kind)), None)
    if base is None:
        raise TypeError(f"{type(value).__name__} is not a date or time")
    plain = base.fromisoformat(base.isoformat(value))
    if plain != value:  # pandas counts nanoseconds
        raise ValueError(f"{value!r} is finer than a {base.__name__}")
    return moment(plain)


def _check_offset(value: Any) -> None:
    if value.tzinfo is None or value.tzinfo is datetime.UTC:
        return
    offset = value.utcoffset()
    if offset is None:
        raise ValueError(f"the time zone of {value!r} has no offset without a date")
    # Local mean times before 1937; RFC 3339 has no seconds there and every parser refuses them.
    if offset % datetime.timedelta(minutes=1):
        raise ValueError(f"the UTC offset of {value!r} is not in whole minutes")


def _is_foreign(node: Any) -> bool:
    kind = getattr(node, "cls", None)
    if isinstance(node, msgspec.inspect.CustomType):
        return kind is not object and not is_model(node.cls)
    # msgspec would build a pydantic dataclass behind its back, with raw `Field(…)` for defaults.
    return hasattr(kind, "__pydantic_validator__")


def _nodes(node: Any, seen: set[int]) -> Iterator[Any]:
    if id(node) in seen:  # recursive types refer to themselves
        return
    seen.add(id(node))
    yield node
    for name in getattr(node, "__struct_fields__", ()):
        part = getattr(node, name)
        for child in part if isinstance(part, tuple) else (part,):
            if isinstance(child, (msgspec.inspect.Type, msgspec.inspect.Field)):
                yield from _nodes(child, seen)


def _adapter(annotation: Any) -> Convert | None:
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is None:
        return None
    leaves = list(_leaves(annotation))
    # Where both have rules (bytes, say) they differ: only what both write the same way is mixed.
    models = [leaf for leaf in leaves if _is_pydantic(leaf)]
    if not models or not all(leaf in models or _is_scalar(leaf) for leaf in leaves):
        return None
    try:
        validate = pydantic.TypeAdapter(annotation).validate_json
    except Exception:  # pydantic's errors are not importable here, and user code runs too
        return None
    names = _by_names(type(validate.__self__).validate_json)
    return lambda data: validate(bytes(data), **names)


def _leaves(annotation: Any) -> Iterator[Any]:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        yield from _leaves(inner[0])
    elif origin in _CONTAINERS:
        for part in inner:
            yield from _leaves(part)
    elif origin is not typing.Literal and annotation is not ...:
        yield annotation


def _is_pydantic(leaf: Any) -> bool:
    return isinstance(leaf, type) and hasattr(leaf, "__pydantic_validator__")


def _is_scalar(leaf: Any) -> bool:
    # A type is hashable, other annotations may not be.
    return leaf in (None, Any) or (
        isinstance(leaf, type) and (leaf in _SCALARS or issubclass(leaf, enum.Enum))
    )


@functools.lru_cache(maxsize=512)
def _by_names(validate: Callable[..., Any]) -> dict[str, bool]:
    # Models are dumped by field name; before pydantic 2.11 an aliased one cannot be read back so,
    # and the round trip at enqueue says it.
    if "by_name" in inspect.signature(validate).parameters:
        return {"by_name": True, "by_alias": True}
    return {}


_MOMENTS = (datetime.datetime, datetime.date, datetime.time)
_STRIPS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (_MOMENTS, moment),
)
