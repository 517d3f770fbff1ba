"""Models, and functions annotated with them, as users write them."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import dataclasses
import datetime
from typing import Annotated

import pydantic
import pydantic.dataclasses


class Owner(pydantic.BaseModel):
    born: datetime.date


class Guest(pydantic.BaseModel):
    age: int


@pydantic.dataclasses.dataclass
class Room:
    beds: int
    guests: list[Guest] = pydantic.Field(default_factory=list)


@dataclasses.dataclass
class House:
    owner: Owner
    paths: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Picky:
    a: int

    def __post_init__(self) -> None:
        raise LookupError("picky")


def plain(a, b): ...  # type: ignore[no-untyped-def]
def nothing() -> None: ...
def keywords(a: int, *, b: bytes, c: bytes = b"") -> bytes: ...
def owners(all: list[Owner], first: Owner | None) -> Owner: ...
def guests(who: Owner | Guest, rooms: list[Room], n: Annotated[Guest | int, "x"]) -> Room: ...
def house(it: House) -> House: ...
def picky(it: Picky) -> Picky: ...
