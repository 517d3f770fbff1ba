"""What cron expressions mean, by looking at the clock on the wall at every minute or second.

Slow and plain, with a parser of its own: nothing here is shared with `fastq.schedule`. Clocks must
be put at whole minutes, which all zones have done since 1972.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache

_RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_NAMES: list[dict[str, int]] = [{}, {}, {}, {}, {}, {}]
_NAMES[4].update((name, number) for number, name in enumerate(_MONTHS, 1))
_NAMES[5].update((name, number) for number, name in enumerate(_DAYS))
_MINUTE = timedelta(minutes=1)
# More than any clock was put back.
_MARGIN_S = 26 * 3600


class Oracle:
    """The ticks of an expression in a zone, each looked for."""

    def __init__(self, expression: str, zone: tzinfo) -> None:
        fields = expression.upper().split()
        self.step_s = 1 if len(fields) == 6 else 60
        self.fixed = len(fields) == 5 and fields[0][0] != "*" and fields[1][0] != "*"
        self._fields = fields if len(fields) == 6 else ["0", *fields]
        self._sets = [_numbers(index, text) for index, text in enumerate(self._fields)]
        self._zone = zone

    def ticks(self, after_ms: int, until_ms: int) -> list[int]:
        """Those in (after, until], in order."""
        found = self._once_a_day if self.fixed else self._each_time
        return [ms for ms in found(after_ms, until_ms) if after_ms < ms <= until_ms]

    def matches(self, wall: datetime) -> bool:
        second, minute, hour, _, month, _ = self._sets
        if wall.second not in second or wall.minute not in minute or wall.hour not in hour:
            return False
        return wall.month in month and self._day_matches(wall)

    def _day_matches(self, wall: datetime) -> bool:
        of_month, of_week = self._fields[3], self._fields[5]
        by_date = wall.day in self._sets[3] or _ends_month(of_month, wall)
        by_name = _weekday_of(wall) in self._sets[5] or _is_nth(of_week, wall)
        if of_month.startswith("*") or of_week.startswith("*"):
            return by_date and by_name
        return by_date or by_name

    def _each_time(self, after_ms: int, until_ms: int) -> Iterator[int]:
        for time_s, wall in self._walls(after_ms, until_ms):
            if self.matches(wall):
                yield time_s * 1000

    def _once_a_day(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """A minute of the calendar comes when the clock first shows it or a later one."""
        walls = self._walls(after_ms - _MARGIN_S * 1000, until_ms)
        _, latest = next(walls)
        for time_s, wall in walls:
            came = [latest + _MINUTE * (n + 1) for n in range((wall - latest) // _MINUTE)]
            if any(map(self.matches, came)):
                yield time_s * 1000
            latest = max(latest, wall)

    def _walls(self, after_ms: int, until_ms: int) -> Iterator[tuple[int, datetime]]:
        start_s = after_ms // 1000 // self.step_s * self.step_s
        return iter(_shown(range(start_s, until_ms // 1000 + 1, self.step_s), self._zone))


# Windows are looked at with many expressions.
@lru_cache(maxsize=4)
def _shown(times_s: range, zone: tzinfo) -> list[tuple[int, datetime]]:
    return [(at, datetime.fromtimestamp(at, zone).replace(tzinfo=None)) for at in times_s]


def _numbers(index: int, text: str) -> set[int]:
    found: set[int] = set()
    for term in text.split(","):
        if not ("L" in term.replace("JUL", "") or "#" in term):
            found |= _term(index, term)
    # Sunday is 0 and 7.
    return {number % 7 for number in found} if index == 5 else found


def _term(index: int, term: str) -> set[int]:
    lowest, highest = _RANGES[index]
    span, _, step = term.partition("/")
    first, _, last = span.partition("-")
    if span == "*":
        low, high = lowest, highest
    else:
        low = _number(index, first)
        high = _number(index, last) if last else highest if step else low
    return set(range(low, high + 1, int(step or 1)))


def _number(index: int, text: str) -> int:
    return _NAMES[index][text] if text in _NAMES[index] else int(text)


def _ends_month(text: str, wall: datetime) -> bool:
    days = range(1, calendar.monthrange(wall.year, wall.month)[1] + 1)
    working = [day for day in days if wall.replace(day=day).isoweekday() < 6]
    lasts = {"L": days[-1], "LW": working[-1]}
    return any(lasts.get(term) == wall.day for term in text.split(","))


def _is_nth(text: str, wall: datetime) -> bool:
    """`MON#2`, the second Monday, or `1L`, the last one, among the terms."""
    last = (wall + timedelta(days=7)).month != wall.month
    for term in text.split(","):
        day, _, nth = term.partition("#")
        if term.endswith("L"):
            day, nth = (term[:-1], "last") if last else ("", "")
        if nth in ("last", str((wall.day - 1) // 7 + 1)) and _weekday(day) == _weekday_of(wall):
            return True
    return False


def _weekday(text: str) -> int:
    return _number(5, text) % 7


def _weekday_of(wall: datetime) -> int:
    return wall.isoweekday() % 7
