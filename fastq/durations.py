"""Options that are checked where they are given: durations, whole numbers, and `UNSET`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastq.clock import seconds
from fastq.errors import ConfigError

Duration = float | timedelta
LONGEST_S = 1e9


class Unset:
    """The type of `UNSET`: an option that was not given. None has a meaning of its own."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET = Unset()


def duration_s(name: str, value: Any, *, also: str = "", zero: bool = False) -> float:
    """A duration in seconds, or `ConfigError`. `also` says what else the option takes."""
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        duration = seconds(value)
        if 0 < duration < LONGEST_S or (zero and duration == 0):
            return duration
    raise ConfigError(
        f"{name} must be a positive number of seconds or a timedelta{also}, not {value!r}."
    )


def limit_s(name: str, value: Duration | None) -> float | None:
    """A time limit in seconds, None for none; `ConfigError` unless it is more than 0."""
    return None if value is None else duration_s(name, value, also=", or None for no limit")


def keep_s(name: str, value: Duration | None) -> float | None:
    """How long a result is kept in seconds: 0 for not at all, None for ever."""
    if value is None:
        return None
    return duration_s(name, value, also=", 0 for not at all, or None for ever", zero=True)


def whole_number(name: str, value: Any, *, most: int) -> int:
    """The value itself if it is a whole number from 1 to `most`, else `ConfigError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigError(f"{name} must be a whole number from 1 to {most}, not {value!r}.")
    return value
