"""Classes whose instances are sent as values in the tests."""

import dataclasses
import datetime
import enum
import math
from typing import Any, NamedTuple

import msgspec
import pydantic

NAN = math.nan


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Broken(enum.Enum):
    NOT_A_NUMBER = NAN


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Items(list[Any]):
    pass


class Moment(datetime.datetime):
    pass


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Plain:
    a: int
    _private: int = 2
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Late:
    a: int
    b: int = dataclasses.field(default=5, init=False)


@dataclasses.dataclass
class Derived:
    a: int
    double: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.double = self.a * 2


@dataclasses.dataclass
class Creeping:
    a: int

    def __post_init__(self) -> None:
        self.a += 1


@dataclasses.dataclass
class Once:
    a: int
    seed: dataclasses.InitVar[int]


class Record(msgspec.Struct, tag=True, omit_defaults=True, rename="camel"):
    first_name: str
    _age: int = 3
    more: list[int] = []


class Optional(msgspec.Struct):
    a: int | msgspec.UnsetType = 3
    b: int | msgspec.UnsetType = msgspec.UNSET


class Model(pydantic.BaseModel):
    a: int
    when: datetime.datetime | None = None
    real: float = 1.0


class Aliased(pydantic.BaseModel):
    name: int = pydantic.Field(validation_alias="in", serialization_alias="out")


class Hidden(pydantic.BaseModel):
    a: int
    secret: int = pydantic.Field(default=3, exclude=True)


class Password(pydantic.BaseModel):
    word: pydantic.SecretStr


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="allow")
    day: datetime.date
    raw: bytes


class Private(pydantic.BaseModel):
    a: int
    _lock: object = pydantic.PrivateAttr(default_factory=object)


class Holder(pydantic.BaseModel):
    model: Model


class SubModel(Model):
    extra: int
