"""Functions under `from __future__ import annotations`, as users write them."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import fastq.context as fq
from fastq.context import Context

if TYPE_CHECKING:
    import somewhere  # type: ignore[import-not-found]
    from somewhere import Thing

    from fastq.context import Context as Hidden


async def dated(ctx: Context, day: datetime.date, at: datetime.datetime | None = None) -> None: ...


def partly(thing: Thing, day: datetime.date, things: list[Thing]) -> somewhere.Else: ...


def with_module(context: fq.Context, x: int) -> int: ...


def with_hidden(context: fq.Context | None, x: Hidden) -> int: ...
