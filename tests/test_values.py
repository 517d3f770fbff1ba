"""Values on their way out: what a serializer carries, and what it refuses to carry."""

import collections
import datetime
import decimal
import fractions
import math
import pathlib
import uuid
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastq.conversion import converter
from fastq.errors import SerializationError
from fastq.serializers import Codec, resolve
from samples import (
    Aliased,
    Broken,
    Colour,
    Creeping,
    Derived,
    Flags,
    Hidden,
    Holder,
    Items,
    Late,
    Level,
    Model,
    Moment,
    Number,
    Once,
    Optional,
    Password,
    Plain,
    Point,
    Private,
    Real,
    Record,
    Strict,
    SubModel,
    Text,
)

JSON = resolve("json")
PICKLE = resolve("pickle")
NAN = math.nan


CET = datetime.timezone(datetime.timedelta(hours=5, minutes=30))

# What arrives, of a value sent to a parameter annotated so.
ROUND_TRIPS: list[tuple[Any, Any]] = [
    (None, None),
    (int, 2**63),
    (int, -(2**200)),
    (str, "null"),
    (list[str | None], ["null", None]),
    (bytes, b"\x00\xff"),
    (decimal.Decimal, decimal.Decimal("1.50")),
    (datetime.timedelta, datetime.timedelta(days=-1, microseconds=1)),
    (datetime.datetime, datetime.datetime(2020, 1, 2, 3, 4, 5, 6, CET)),
    (datetime.datetime, datetime.datetime(2020, 1, 2)),
    (datetime.datetime, Moment(2020, 1, 2, 3)),
    (datetime.date, datetime.date(1, 1, 1)),
    (datetime.time, datetime.time(1, 2, 3, tzinfo=datetime.UTC)),
    (uuid.UUID, uuid.UUID(int=2**100 + 7)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset("ab")),
    (tuple[int, str], (1, "a")),
    (dict[int, str], {1: "a", 2: "b"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}),
    (dict[Colour, int], {Colour.RED: 1}),
    (Colour, Colour.RED),
    (Level, Level.LOW),
    (Flags, Flags.A | Flags.B),
    (Point, Point(1, 2)),
    (Plain, Plain(1, 7, ["x"])),
    (list[Plain], [Plain(1)]),
    (Derived, Derived(2)),
    (Late, Late(1)),
    (Record, Record("Ada", 5)),
    (Record, Record("Ada")),
    (Optional, Optional(1)),
    (Model, Model(a=1, when=datetime.datetime(2020, 1, 1))),
    (dict[str, Model | None], {"a": Model(a=1), "b": None}),
    (Aliased, Aliased.model_validate({"in": 4})),
    (Strict, Strict(day=datetime.date(2020, 1, 1), raw=b"abc", more=1)),  # type: ignore[call-arg]
    (Hidden, Hidden(a=1)),
]

LOSSES: list[tuple[str, Callable[[], Any]]] = [
    ("nan", lambda: NAN),
    ("inf", lambda: [1, {"a": math.inf}]),
    ("inf", lambda: (None, -math.inf)),
    ("nan", lambda: Real("nan")),
    ("nan", lambda: Broken.NOT_A_NUMBER),
    ("nan", lambda: {NAN: 1}),
    ("nan", lambda: Model(a=1, real=NAN)),
    ("keys", lambda: {1: "a", "1": "b"}),
    ("keys", lambda: {True: "a"}),
    ("keys", lambda: {(1, 2): "a"}),
    ("InitVar", lambda: Once(1, 2)),
    ("'a' of Derived", lambda: object.__new__(Derived)),
    ("Creeping changes", lambda: Creeping(1)),
    ("Derived changes", lambda: _with(Derived(1), double=99)),
    ("'a' of Optional", lambda: Optional(msgspec.UNSET)),
    ("'secret' of Hidden", lambda: Hidden(a=1, secret=4)),
    ("'word' of Password", lambda: Password(word=pydantic.SecretStr("x"))),
    ("'model' of Holder", lambda: Holder(model=SubModel(a=1, extra=2))),
    ("surrogates", lambda: "\ud800"),
    ("surrogates", lambda: {"\ud800": 1}),
    ("contains itself", lambda: _circular([])),
    ("254 levels", lambda: _nested(300)),
    ("Fraction", lambda: [fractions.Fraction(1, 2)]),
    ("complex", lambda: 1j),
    ("PosixPath", lambda: pathlib.PosixPath("/")),
    ("deque", lambda: collections.deque()),
    ("object", lambda: object()),
    ("generator", lambda: (x for x in "")),
    ("too large", lambda: 10**5000),
    ("whole minutes", lambda: datetime.datetime(1890, 1, 1, tzinfo=ZoneInfo("Europe/Paris"))),
    ("without a date", lambda: datetime.time(1, tzinfo=ZoneInfo("Europe/Paris"))),
]


def _with(value: Any, **fields: Any) -> Any:
    for name, each in fields.items():
        setattr(value, name, each)
    return value


def _circular(value: list[Any]) -> list[Any]:
    value.append(value)
    return value


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=lambda part: type(part).__name__)
def test_a_value_arrives_as_its_annotation_says(annotation: Any, value: Any) -> None:
    convert = converter(annotation)
    assert convert is not None
    assert convert(JSON.dump_value(value)) == value


@pytest.mark.parametrize(("reason", "make"), LOSSES, ids=lambda part: str(part)[:20])
@pytest.mark.parametrize("beside", [(), (b"takes the slow path",)], ids=["alone", "beside"])
def test_what_would_be_lost_is_refused(
    reason: str, make: Callable[[], Any], beside: tuple[Any, ...]
) -> None:
    value = make()
    with pytest.raises(SerializationError, match="argument 1") as refused:
        JSON.dump_call((value, *beside), {})
    assert reason in str(refused.value)
    assert type(value).__name__ in str(refused.value)
    with pytest.raises(SerializationError, match="the result"):
        JSON.dump_value([value, *beside])


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Text("x"), "x"),
        (Number(5), 5),
        (Real(1.5), 1.5),
        (Items([1]), [1]),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        ({Text("x"): 1}, {"x": 1}),
        (_with(Late(1), b=7), {"a": 1, "b": 7}),
        (Private(a=1), {"a": 1}),
        (2**64, 2**64),
    ],
    ids=repr,
)
def test_a_subclass_travels_as_what_it_is(value: Any, plain: Any) -> None:
    assert JSON.load_value(JSON.dump_value([value])) == [plain]
    assert JSON.load_value(JSON.dump_value([value, b""])) == [plain, ""]


@pytest.mark.parametrize("levels", [1, 252, 253])
def test_the_slow_path_takes_what_the_fast_one_takes(levels: int) -> None:
    fast, slow = JSON.dump_value(_nested(levels)), JSON.dump_value([_nested(levels - 1), b""])
    assert fast[:levels] == slow[:levels]


def test_attrs_classes_travel_unless_fields_are_private() -> None:
    attrs = pytest.importorskip("attrs")
    public = attrs.make_class("Public", {"a": attrs.field()})
    private = attrs.make_class("Private", {"_a": attrs.field()})
    assert JSON.dump_value(public(1)) == b'{"a":1}'
    with pytest.raises(SerializationError, match="'_a' of Private"):
        JSON.dump_value(private(1))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip
ANY_CODEC = st.sampled_from([JSON, PICKLE])


@given(ANY_CODEC, st.lists(JSON_VALUES), st.dictionaries(st.text(), JSON_VALUES))
def test_any_json_call_round_trips(codec: Codec, args: list[Any], kwargs: dict[str, Any]) -> None:
    assert codec.load_call(codec.dump_call(tuple(args), kwargs)) == (tuple(args), kwargs)


@given(ANY_CODEC, JSON_VALUES)
def test_any_json_result_round_trips(codec: Codec, value: Any) -> None:
    again = codec.load_value(codec.dump_value(value))
    assert again == value
    assert repr(again) == repr(value)  # 1, 1.0 and True are equal


@given(JSON_VALUES, st.sampled_from([NAN, math.inf, -math.inf]), st.data())
def test_nan_is_found_wherever_it_hides(value: Any, poison: float, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(0, 5))):
        poison = data.draw(st.sampled_from([[value, poison], {"null": poison, "b": value}]))
    with pytest.raises(SerializationError):
        JSON.dump_call((value, None), {"null": poison})
    with pytest.raises(SerializationError):
        JSON.dump_value(poison)
