"""When cron entries fire: the ticks of an expression in a time zone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import takewhile

from cronsim import CronSim

from fastq.clock import from_ms

_SECOND = timedelta(seconds=1)
# Offsets from UTC are less than this. Two changes of a zone are at least six apart (since 2000).
_DAY = timedelta(days=1)
_FIRST_SPAN_MS = 60_000


class Schedule:
    """The ticks of a cron expression in a time zone, as ms of UTC.

    A fixed time of day (no field for minute or hour begins with `*`, as in Debian's cron) comes
    once a day: if the clock skips it, right after the gap; if the clock shows it twice, the first
    time. All else, and expressions with seconds, go by real time: what matches the clock on the
    wall fires, each time that the clock shows it.
    """

    def __init__(self, expression: str, zone: tzinfo) -> None:
        """`CronSimError` if the expression is none."""
        fields = expression.split()
        CronSim(expression, datetime(2000, 1, 1))
        self.expression = " ".join(fields)
        self.zone = zone
        self._once_a_day = len(fields) == 5 and not any(f.startswith("*") for f in fields[:2])

    def next_after(self, time_ms: int) -> int | None:
        """The first tick after a time; None if there is none within 50 years."""
        return next(self._ticks(time_ms), None)

    def missed(self, after_ms: int, now_ms: int, most: int) -> list[int]:
        """The ticks after one time, up to another and that included: the latest ones, in order."""
        found: list[int] = []
        span_ms = _FIRST_SPAN_MS
        # Backwards in growing spans: there may be a year of seconds behind.
        while len(found) < most and after_ms < now_ms:
            start_ms = max(after_ms, now_ms - span_ms)
            found[:0] = takewhile(now_ms.__ge__, self._ticks(start_ms))
            now_ms, span_ms = start_ms, 2 * span_ms
        return found[-most:]

    def _ticks(self, after_ms: int) -> Iterator[int]:
        after = from_ms(after_ms)
        for instant in self._fixed(after) if self._once_a_day else self._real(after):
            yield int(instant.timestamp()) * 1000

    def _fixed(self, after: datetime) -> Iterator[datetime]:
        """By the calendar: each time of day is one instant, wherever the clock is put."""
        for wall in CronSim(self.expression, _wall(after, self.zone)):
            instant = _first_shown(wall, self.zone)
            # Within the second showing of an hour its times are over; in a gap they are one.
            if instant > after:
                yield instant
                after = instant

    def _real(self, after: datetime) -> Iterator[datetime]:
        """Stretch by stretch of one offset from UTC: within it, the clock runs evenly."""
        change: datetime | None = after
        while change is not None:
            after, change = change, None
            offset = _offset(after, self.zone)
            for wall in CronSim(self.expression, _wall(after, self.zone)):
                instant = wall.replace(tzinfo=UTC) - offset
                change = _next_change(after, instant, self.zone)
                if change is not None:
                    break
                yield instant
                after = instant
            if change is not None and self._fires_at(change):
                yield change

    def _fires_at(self, instant: datetime) -> bool:
        wall = _wall(instant, self.zone)
        return next(CronSim(self.expression, wall - _SECOND), None) == wall


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()


def _wall(instant: datetime, zone: tzinfo) -> datetime:
    """What the clock shows, as a naive datetime."""
    return instant.astimezone(zone).replace(tzinfo=None)


def _first_shown(wall: datetime, zone: tzinfo) -> datetime:
    """When the clock first shows this time or, if it skips it, what comes after the gap."""
    # By way of UTC alone: the other way is ambiguous, and not every kind of tzinfo can tell.
    after = wall.replace(tzinfo=UTC) - _DAY
    while True:
        instant = wall.replace(tzinfo=UTC) - _offset(after, zone)
        change = _next_change(after, instant, zone)
        if change is None:
            return instant
        if _wall(change, zone) >= wall:
            return change
        after = change


def _next_change(after: datetime, until: datetime, zone: tzinfo) -> datetime | None:
    """The first instant in (after, until] from which another offset is in force."""
    offset, start = _offset(after, zone), after
    while start < until:
        end = min(start + _DAY, until)
        if _offset(end, zone) != offset:
            return _bisect(start, end, zone)
        start = end
    return None


def _bisect(same: datetime, other: datetime, zone: tzinfo) -> datetime:
    """The second at which the offset changes between two instants."""
    offset = _offset(same, zone)
    same, other = same.replace(microsecond=0), other.replace(microsecond=0)
    while other - same > _SECOND:
        middle = (same + (other - same) / 2).replace(microsecond=0)
        if _offset(middle, zone) == offset:
            same = middle
        else:
            other = middle
    return other
