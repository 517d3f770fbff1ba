"""Ticks around the days on which clocks are put forward or back, against a look at each minute."""

import bisect
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from zoneinfo import ZoneInfo

import pytest

from fastq.schedule import Schedule
from oracle import Oracle

BERLIN = ZoneInfo("Europe/Berlin")
_HOUR_MS = 3_600_000
# A leader may take over at any time: ticks are asked for from all over the window.
_STEP_MS = 7 * 60_000
# When the clocks change, or just a day where they do not.
CHANGES = [
    ("Europe/Berlin", "2024-03-31T01:00"),
    ("Europe/Berlin", "2025-10-26T01:00"),
    ("UTC", "2024-02-29T01:00"),
    ("Asia/Kathmandu", "2024-03-31T01:00"),
    # By half an hour.
    ("Australia/Lord_Howe", "2024-04-06T15:00"),
    ("Australia/Lord_Howe", "2024-10-05T15:30"),
    # There is no midnight; 23:00 comes twice.
    ("America/Sao_Paulo", "2018-11-04T03:00"),
    ("America/Sao_Paulo", "2018-02-18T02:00"),
    ("Africa/Cairo", "2024-04-25T22:00"),
    ("Africa/Cairo", "2024-10-31T21:00"),
    # At a minute past midnight.
    ("America/St_Johns", "2010-03-14T03:31"),
    ("America/St_Johns", "2010-11-07T02:31"),
    # Back for Ramadan.
    ("Africa/Casablanca", "2024-03-10T02:00"),
    ("Africa/Casablanca", "2024-04-14T02:00"),
    # By two and by three hours, and by a whole day.
    ("America/Bahia_Banderas", "2010-04-04T09:00"),
    ("Antarctica/Casey", "2020-10-03T16:01"),
    ("Pacific/Apia", "2011-12-30T10:00"),
]
EXPRESSIONS = [
    "30 2 * * *",
    "0 3 * * *",
    "0 0 * * *",
    "0 12 * * *",
    "15 1-3 * * *",
    "*/30 * * * *",
    "0,30 * * * *",
    "0 * * * *",
    "7-52/15 0-4,22-23 * * *",
    "*/10 * * * *",
    "* 2 * * *",
    "30 2 * * SUN",
    "30 2 L * *",
    "*/7 2 29-31 * FRI",
    "0 0 1,30 * SUN",
]


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


@cache
def zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


def first_of(right: list[int], after_ms: int) -> int | None:
    place = bisect.bisect_right(right, after_ms)
    return right[place] if place < len(right) else None


def until(schedule: Schedule, start_ms: int, end_ms: int) -> list[int]:
    """The ticks in (start, end], each asked for with the one before; no more than can be."""
    found: list[int] = []
    tick_ms = schedule.next_after(start_ms)
    while tick_ms is not None and tick_ms <= end_ms and len(found) < 20_000:
        found.append(tick_ms)
        tick_ms = schedule.next_after(tick_ms)
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_each_tick_around_a_change_of_the_clocks(name: str, change: str, expression: str) -> None:
    start_ms, end_ms = ms(change) - 12 * _HOUR_MS, ms(change) + 30 * _HOUR_MS
    schedule = Schedule(expression, zone(name))
    right = Oracle(expression, zone(name)).ticks(start_ms, end_ms)
    assert until(schedule, start_ms, end_ms) == right
    for asked_ms in range(ms(change) - 3 * _HOUR_MS, ms(change) + 4 * _HOUR_MS, _STEP_MS):
        found_ms = schedule.next_after(asked_ms)
        assert found_ms is not None
        assert (found_ms if found_ms <= end_ms else None) == first_of(right, asked_ms)


@pytest.mark.parametrize("expression", ["*/20 * * * * *", "59 59 1-3 * * *", "0 30 2 * * *"])
@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_each_second_around_a_change_of_the_clocks(name: str, change: str, expression: str) -> None:
    start_ms, end_ms = ms(change) - _HOUR_MS, ms(change) + 2 * _HOUR_MS
    schedule = Schedule(expression, zone(name))
    right = Oracle(expression, zone(name)).ticks(start_ms, end_ms)
    assert until(schedule, start_ms, end_ms) == right
    assert schedule.missed(start_ms, end_ms, 2_000) == right
    for asked_ms in range(start_ms, end_ms, _STEP_MS + 501):
        found_ms = schedule.next_after(asked_ms)
        assert found_ms is not None
        assert (found_ms if found_ms <= end_ms else None) == first_of(right, asked_ms)


def ticks(expression: str, zone: tzinfo, after: str, count: int) -> list[str]:
    """The next ones after a time, each asked for with the one before."""
    schedule, times = Schedule(expression, zone), [ms(after)]
    for _ in range(count):
        tick_ms = schedule.next_after(times[-1])
        assert tick_ms is not None
        times.append(tick_ms)
    return [f"{datetime.fromtimestamp(tick_ms / 1000, UTC):%F %T}" for tick_ms in times[1:]]


@pytest.mark.parametrize(
    ("expression", "after", "due"),
    [
        # 02:00 becomes 03:00: what is skipped comes right after, as one.
        ("30 2 * * *", "2024-03-30 12:00", ["2024-03-31 01:00", "2024-04-01 00:30"]),
        ("0 3 * * *", "2024-03-30 12:00", ["2024-03-31 01:00", "2024-04-01 01:00"]),
        ("15,45 1-3 31 3 *", "2024-03-31 00:00", ["2024-03-31 00:15", "2024-03-31 00:45",
         "2024-03-31 01:00", "2024-03-31 01:15", "2024-03-31 01:45", "2025-03-30 23:15"]),
        ("*/30 * * * *", "2024-03-31 00:20", ["2024-03-31 00:30", "2024-03-31 01:00"]),
        ("0 */2 * * *", "2024-03-31 00:00", ["2024-03-31 02:00"]),
        ("* 2 * * *", "2024-03-31 00:00", ["2024-04-01 00:00"]),
        # 03:00 becomes 02:00: a time of day is over then, half hours are not.
        ("30 2 * * *", "2024-10-26 12:00", ["2024-10-27 00:30", "2024-10-28 01:30"]),
        ("30 2 * * *", "2024-10-27 01:10", ["2024-10-28 01:30"]),
        ("0 2 * * *", "2024-10-26 12:00", ["2024-10-27 00:00", "2024-10-28 01:00"]),
        ("0 3 * * *", "2024-10-26 12:00", ["2024-10-27 02:00", "2024-10-28 02:00"]),
        ("*/30 * * * *", "2024-10-27 00:00", ["2024-10-27 00:30", "2024-10-27 01:00",
         "2024-10-27 01:30", "2024-10-27 02:00"]),
        ("0,30 * * * *", "2024-10-27 00:00", ["2024-10-27 00:30", "2024-10-27 01:00",
         "2024-10-27 01:30", "2024-10-27 02:00"]),
        ("0 30 2 * * *", "2024-10-27 00:00", ["2024-10-27 00:30", "2024-10-27 01:30",
         "2024-10-28 01:30"]),
    ],
)  # fmt: skip
def test_ticks_when_the_clocks_change_in_berlin(
    expression: str, after: str, due: list[str]
) -> None:
    assert ticks(expression, BERLIN, after, len(due)) == [f"{each}:00" for each in due]


def test_a_day_that_a_zone_left_out_is_one_tick_at_its_end() -> None:
    # Samoa went from the 29th of December to the 31st.
    noons = ticks("0 12 * * *", ZoneInfo("Pacific/Apia"), "2011-12-29 12:00", 3)
    assert noons == ["2011-12-29 22:00:00", "2011-12-30 10:00:00", "2011-12-30 22:00:00"]


class OneWay(tzinfo):
    """A zone as pytz has them: it can only tell what a time in UTC is."""

    def fromutc(self, moment: datetime) -> datetime:
        offset = moment.replace(tzinfo=UTC).astimezone(BERLIN).utcoffset()
        assert offset is not None
        return (moment + offset).replace(tzinfo=timezone(offset))

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(minutes=53)

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str:
        return "LMT"


@pytest.mark.parametrize("expression", ["30 2 * * *", "*/30 * * * *"])
@pytest.mark.parametrize("after", ["2024-03-30 22:00", "2024-10-26 22:00"])
def test_a_zone_need_not_tell_the_way_back(expression: str, after: str) -> None:
    assert ticks(expression, OneWay(), after, 8) == ticks(expression, BERLIN, after, 8)
