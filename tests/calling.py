"""A call as the producer checks it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fastq.parameters import arity, misfit


def check_call(
    fn: Any, skip_first: bool, args: Collection[object], kwargs: Mapping[str, object]
) -> None:
    """Raises TypeError, as `enqueue` does, if the arguments do not fit."""
    if problem := misfit(arity(fn, skip_first), len(args), kwargs):
        raise TypeError(problem)


def label(part: object) -> str:
    """A short test id that is the same in each process: no address of an object."""
    return getattr(part, "__name__", str(part))[:40]
