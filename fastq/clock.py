"""The two clocks: `mono_s` for differences, `RedisClock` for times that are stored.

Stored times are milliseconds of the server's `TIME`, so that workers whose own clocks disagree
still agree on when a job ran.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

mono_s = time.monotonic


def seconds(value: float | timedelta) -> float:
    """A duration as seconds; `timedelta` is taken too."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def from_ms(time_ms: int) -> datetime:
    """A stored time as an aware `datetime` in UTC."""
    return datetime.fromtimestamp(time_ms / 1000, UTC)


class RedisClock:
    """Estimates the server's clock from the monotonic one and the last `TIME` seen."""

    __slots__ = ("_offset_ms",)

    def __init__(self) -> None:
        # Until the server has told its time, the wall clock is the best guess.
        self._offset_ms = time.time() * 1000 - mono_s() * 1000

    def told(self, time_ms: float) -> None:
        """Sets the clock from a `TIME` of the server, in ms, that has just arrived."""
        self._offset_ms = time_ms - mono_s() * 1000

    @property
    def offset_ms(self) -> float:
        """What to add to the monotonic clock in ms to get the server's time in ms."""
        return self._offset_ms

    def now_ms(self) -> int:
        """The server's time in ms, as far as is known here."""
        return int(mono_s() * 1000 + self._offset_ms)
