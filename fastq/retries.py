"""Running a job again: what a job raises to ask for it or to refuse it, and how long to wait."""

from __future__ import annotations

import inspect
import logging
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from fastq.clock import seconds
from fastq.durations import LONGEST_S, duration_s, whole_number
from fastq.errors import ConfigError

log = logging.getLogger("fastq.retries")

Backoff = Callable[[int], float | timedelta]
"""Seconds to wait before a job runs again, by the number of its runs so far (1 after the first)."""
RetryOn = type[BaseException] | Sequence[type[BaseException]]
_MOST_TRIES = 1_000_000


class Retry(Exception):
    """Raised by a job that is to run again, whatever `retry_on` says.

    `defer` is seconds or a timedelta; without it the job's `backoff` decides, and 0 is at once.
    Counts as a run: after `max_tries` of them the job is dead, reason `retries`.
    """

    def __init__(self, message: str = "", *, defer: float | timedelta | None = None) -> None:
        super().__init__(message or "asked to run again")
        self.defer_s = (
            None
            if defer is None
            else duration_s("Retry: defer", defer, also=", or 0 for at once", zero=True)
        )


class Reject(Exception):
    """Raised by a job that must not run again, whatever `retry_on` says: dead, `rejected`."""


@dataclass(frozen=True, slots=True)
class Exponential:
    """A backoff that grows with each run: `base_s * factor ** (tries - 1)`, `maximum_s` at most.

    With `jitter` it is drawn evenly from 0 to that ("full jitter"), so that jobs that failed
    together do not come back together.
    """

    base_s: float
    factor: float
    maximum_s: float
    jitter: bool

    def ceiling_s(self, tries: int) -> float:
        """The longest delay after so many runs."""
        # By logarithms first: after a thousand runs the power overflows a float.
        if self.factor > 1 and (tries - 1) * math.log(self.factor) > 700:
            return self.maximum_s
        return min(self.maximum_s, self.base_s * self.factor ** (tries - 1))

    def __call__(self, tries: int) -> float:
        ceiling_s = self.ceiling_s(tries)
        return random.uniform(0, ceiling_s) if self.jitter else ceiling_s


def exponential(
    *,
    base: float | timedelta = 1,
    factor: float = 2,
    maximum: float | timedelta = 3600,
    jitter: bool = True,
) -> Exponential:
    """A `backoff` for settings and `@job`: about 1, 2, 4, … seconds, an hour at most.

    `base` and `maximum` are seconds or timedelta. With `jitter` each delay is drawn evenly from 0
    to that.
    """
    base_s = duration_s("exponential: base", base)
    maximum_s = duration_s("exponential: maximum", maximum)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < 1e6:
        raise ConfigError(f"exponential: factor must be a number from 1 on, not {factor!r}.")
    return Exponential(base_s, float(factor), maximum_s, jitter)


def tries_of(value: Any) -> int:
    """`max_tries`, or `ConfigError`."""
    return whole_number("max_tries", value, most=_MOST_TRIES)


def exception_types(value: Any) -> tuple[type[BaseException], ...]:
    """`retry_on`, one exception type or several, or `ConfigError`."""
    several = isinstance(value, Sequence | set | frozenset) and not isinstance(value, str)
    types = value if several else (value,)
    for kind in types:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigError(f"retry_on must name exception types, not {kind!r}.")
    return tuple(types)


def backoff_of(value: Any) -> Backoff:
    """`backoff`, or `ConfigError`; whether it can be called is found out now."""
    try:
        inspect.signature(value).bind(1)
        fits = not inspect.iscoroutinefunction(value)
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ConfigError(
            "backoff must be a function that takes the number of runs so far and returns seconds, "
            f"or exponential(…), not {value!r}."
        )
    found: Backoff = value
    return found


def delay_s(backoff: Backoff, tries: int) -> float:
    """What a backoff says, in seconds; if it fails, what the default says: the job still runs."""
    try:
        found = seconds(backoff(tries))
        if 0 <= found < LONGEST_S:
            return found
        log.error("backoff(%d) gave %r, which is no delay in seconds", tries, found)
    except Exception:
        log.exception("backoff(%d) failed", tries)
    return exponential()(tries)
