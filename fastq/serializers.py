"""Values to bytes and back.

A *codec* turns the arguments of a call, and results, into bytes. On the wire a JSON call is
`[a, b]`, or with keyword arguments `{"a": […], "k": {…}}`; every other serializer is handed the
pair `([a, b], {…})`. A codec never drops or changes anything in silence: it raises.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import orjson

from fastq import lossless
from fastq.conversion import moment
from fastq.errors import ConfigError, SerializationError

Args = tuple[object, ...]
Kwargs = dict[str, object]

# Left to orjson a dataclass loses `_private` fields, and a time zone the seconds of its offset.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_NULL = b"null"
_dumps = orjson.dumps
_JSON_HINT = "pass what JSON can hold, or use a serializer that can carry it, on both sides"
_OTHER_HINT = "pass something that it can carry, such as an id to look it up by"


class Serializer(Protocol):
    """What a user may give as `serializer`: any object with these two methods.

    `loads(dumps(value))` must give back a pair (or list of two) of a sequence and a mapping for
    arguments, and any value for results.
    """

    def dumps(self, value: Any, /) -> bytes:
        """`value` as bytes; whatever it raises becomes a `SerializationError`."""

    def loads(self, data: bytes, /) -> object:
        """The value again; it may raise whatever it likes."""


class Codec(Protocol):
    """What the rest of fastq uses. `converts` tells whether annotations convert what is read."""

    converts: bool

    def dump_call(
        self, args: Args, kwargs: Kwargs, parameters: Sequence[str] | None = None
    ) -> bytes:
        """Raises `SerializationError` that names the argument and its type.

        `parameters` are the names of the positional parameters, without the context's.
        """

    def dump_value(self, value: object) -> bytes:
        """A result. Raises `SerializationError` that names its type."""

    def load_call(self, data: bytes) -> tuple[Args, Kwargs]:
        """The arguments, unconverted. Raises `SerializationError`."""

    def load_value(self, data: bytes) -> object:
        """A result, unconverted. Raises `SerializationError`."""


def resolve(spec: str | Serializer) -> Codec:
    """The codec for a `serializer` setting: "json", "pickle" or an object with dumps and loads.

    Raises `ConfigError` for anything else.
    """
    if spec == "json":
        return JsonCodec()
    if spec == "pickle":
        return GenericCodec("pickle", _dumps_pickle, pickle.loads)
    dumps, loads = getattr(spec, "dumps", None), getattr(spec, "loads", None)
    if callable(dumps) and callable(loads):
        return GenericCodec(_name(spec), dumps, loads)
    raise ConfigError(
        f'serializer is {spec!r}; it must be "json", "pickle" or an object with dumps and loads'
    )


class JsonCodec:
    """JSON by orjson; by msgspec's and pydantic's rules what orjson refuses or might alter."""

    converts = True

    def dump_call(
        self, args: Args, kwargs: Kwargs, parameters: Sequence[str] | None = None
    ) -> bytes:
        value: Any = {"a": args, "k": kwargs} if kwargs else args
        try:
            data = _dumps(value, moment, _OPTIONS)
            nulls = data.count(_NULL)  # measured: half the price of `in`
            if nulls and nulls != _nones(args) + _nones(kwargs.values()):
                lossless.check(value)
            return data
        except (TypeError, lossless.Lossy):
            return self._dump_slowly(value, args, kwargs, parameters)

    def dump_value(self, value: object) -> bytes:
        try:
            data = _dumps(value, moment, _OPTIONS)
            if data.count(_NULL) and value is not None:
                lossless.check(value)
            return data
        except (TypeError, lossless.Lossy):
            pass
        try:
            return lossless.encode(value)
        except Exception as error:
            raise _refused("the result", value, error, "JSON", _JSON_HINT) from error

    def load_call(self, data: bytes) -> tuple[Args, Kwargs]:
        value = self.load_value(data)
        if isinstance(value, list):
            return tuple(value), {}
        if isinstance(value, dict) and value.keys() == {"a", "k"}:
            return _call(value["a"], value["k"])
        raise SerializationError("these are not the arguments of a call: no [a, b] or {a, k}")

    def load_value(self, data: bytes) -> object:
        # Not by orjson, which reads integers of over 64 bits as floats.
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise SerializationError(
                f"not JSON: {error}; do both sides use the same serializer?"
            ) from error

    def _dump_slowly(
        self, value: object, args: Args, kwargs: Kwargs, parameters: Sequence[str] | None
    ) -> bytes:
        try:
            return lossless.encode(value)
        except Exception as error:
            label, culprit, cause = _culprit(lossless.encode, args, kwargs, parameters, error)
            raise _refused(label, culprit, cause, "JSON", _JSON_HINT) from cause


class GenericCodec:
    """Pickle or the user's own serializer; nothing is converted."""

    converts = False

    def __init__(
        self, name: str, dumps: Callable[[Any], object], loads: Callable[[bytes], object]
    ) -> None:
        self.name = name
        self._dumps = dumps
        self._loads = loads

    def dump_call(
        self, args: Args, kwargs: Kwargs, parameters: Sequence[str] | None = None
    ) -> bytes:
        try:
            return self._dump((list(args), kwargs))
        except Exception as error:
            label, culprit, cause = _culprit(self._dump_one, args, kwargs, parameters, error)
            raise _refused(label, culprit, cause, self.name, _OTHER_HINT) from cause

    def dump_value(self, value: object) -> bytes:
        try:
            return self._dump(value)
        except Exception as error:
            raise _refused("the result", value, error, self.name, _OTHER_HINT) from error

    def load_call(self, data: bytes) -> tuple[Args, Kwargs]:
        value = self.load_value(data)
        if isinstance(value, (tuple, list)) and len(value) == 2:
            return _call(*value)
        raise SerializationError(f"{self.name} gave no pair of arguments and keyword arguments")

    def load_value(self, data: bytes) -> object:
        try:
            return self._loads(data)
        except Exception as error:
            raise SerializationError(
                f"{self.name} cannot read it: {type(error).__name__}: {error}; do both sides use"
                " the same serializer, and can this one import the classes in it?"
            ) from error

    def _dump(self, value: object) -> bytes:
        data = self._dumps(value)
        if not isinstance(data, bytes):
            raise TypeError(f"its dumps gave {type(data).__name__}, not bytes")
        return data

    def _dump_one(self, value: object) -> bytes:
        return self._dump(([value], {}))


def _dumps_pickle(value: object) -> bytes:
    return pickle.dumps(value, 5)


def _nones(values: Any) -> int:
    # orjson writes NaN and Infinity as null: as many null as None means that it did not.
    return [value is None for value in values].count(True)


def _call(args: object, kwargs: object) -> tuple[Args, Kwargs]:
    if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
        raise SerializationError("these are not the arguments of a call: no sequence and mapping")
    if not all(isinstance(name, str) for name in kwargs):
        raise SerializationError("these are not the arguments of a call: a keyword is no string")
    return tuple(args), dict(kwargs)


def _culprit(
    dump: Callable[[Any], object],
    args: Args,
    kwargs: Kwargs,
    parameters: Sequence[str] | None,
    error: Exception,
) -> tuple[str, object, Exception]:
    """Which argument it was, found by dumping each alone; the whole call if each alone is fine."""
    for label, value in _labelled(args, kwargs, parameters or ()):
        try:
            dump(value)
        except Exception as cause:
            return label, value, cause
    return "the arguments", args, error


def _labelled(
    args: Args, kwargs: Kwargs, parameters: Sequence[str]
) -> Iterator[tuple[str, object]]:
    for index, value in enumerate(args):
        known = index < len(parameters)
        yield (f"argument {parameters[index]!r}" if known else f"argument {index + 1}"), value
    for name, value in kwargs.items():
        yield f"argument {name!r}", value


def _refused(
    label: str, value: object, error: Exception, serializer: str, hint: str
) -> SerializationError:
    reason = str(error) or type(error).__name__
    return SerializationError(
        f"{label} of type {type(value).__qualname__} cannot be carried by {serializer}:"
        f" {reason}; {hint}"
    )


def _name(spec: object) -> str:
    return getattr(spec, "__name__", None) or type(spec).__name__
