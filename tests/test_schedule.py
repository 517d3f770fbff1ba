"""When an expression is due: the single rules, and any expression against a look at each minute."""

import time
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSimError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastq import ConfigError, cron
from fastq.cron import CronJob
from fastq.schedule import Schedule
from oracle import Oracle

BERLIN = ZoneInfo("Europe/Berlin")
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


def ms(text: str) -> int:
    """A time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def text(time_ms: int | None) -> str | None:
    return None if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1000, UTC):%F %T}"


@pytest.mark.parametrize(
    ("expression", "after", "due"),
    [
        ("*/5 * * * *", "2026-05-01 12:03:10", "2026-05-01 12:05:00"),
        ("* * * * *", "2026-05-01 12:03:00", "2026-05-01 12:04:00"),
        ("*/20 * * * * *", "2026-05-01 12:03:20", "2026-05-01 12:03:40"),
        ("30 2 * * *", "2026-12-31 02:30:00", "2027-01-01 02:30:00"),
        ("0 9 * * MON-FRI", "2026-05-01 09:00:00", "2026-05-04 09:00:00"),
        ("0 9 * jan,JUL mon", "2026-05-01 09:00:00", "2026-07-06 09:00:00"),
        ("0 0 * * 7", "2026-05-01 00:00:00", "2026-05-03 00:00:00"),
        ("0 0 * * 0", "2026-05-01 00:00:00", "2026-05-03 00:00:00"),
        ("0 0 L * *", "2026-02-01 00:00:00", "2026-02-28 00:00:00"),
        ("0 0 LW * *", "2026-02-01 00:00:00", "2026-02-27 00:00:00"),
        ("0 0 * * FRI#2", "2026-05-09 00:00:00", "2026-06-12 00:00:00"),
        ("0 0 * * 5L", "2026-05-01 00:00:00", "2026-05-29 00:00:00"),
        ("0 0 29 2 *", "2026-05-01 00:00:00", "2028-02-29 00:00:00"),
        ("0 0 29 2 *", "2096-02-29 00:00:00", "2104-02-29 00:00:00"),
        ("0 0 31 * *", "2026-01-31 00:00:00", "2026-03-31 00:00:00"),
        # Either of the two days, unless one of them begins with a star.
        ("0 0 13 * FRI", "2026-05-09 00:00:00", "2026-05-13 00:00:00"),
        ("0 0 13 * FRI", "2026-05-13 00:00:00", "2026-05-15 00:00:00"),
        ("0 0 */13 * FRI", "2026-05-02 00:00:00", "2026-08-14 00:00:00"),
        # Long waits.
        ("0 0 * 2 MON#5", "2026-05-01 00:00:00", "2044-02-29 00:00:00"),
        ("* * 29 2 */7", "2004-03-01 00:00:00", "2032-02-29 00:00:00"),
    ],
)
def test_the_next_tick(expression: str, after: str, due: str) -> None:
    assert text(Schedule(expression, UTC).next_after(ms(after))) == due
    assert Schedule(expression, UTC).next_after(ms(due) - 1) == ms(due)


def test_fractions_of_a_second_count() -> None:
    schedule = Schedule("0 12 * * *", UTC)
    noon_ms = ms("2026-05-01 12:00:00")
    nexts = [schedule.next_after(noon_ms + more_ms) for more_ms in (-1, 0, 1, 999)]
    assert nexts == [noon_ms, *[noon_ms + 24 * _HOUR_MS] * 3]


def test_times_before_1970_are_times() -> None:
    assert text(Schedule("0 0 * * *", UTC).next_after(-1)) == "1970-01-01 00:00:00"
    assert text(Schedule("0 0 * * *", UTC).next_after(-86_400_001)) == "1969-12-31 00:00:00"


@pytest.mark.parametrize("expression", ["0 0 L 2 1#5,2#5,3L", "0 0 * 2 1#5", "* * 29 2 */7"])
def test_what_is_rare_is_found(expression: str) -> None:
    assert Schedule(expression, BERLIN).next_after(ms("2026-05-01 00:00:00")) is not None


def test_none_if_nothing_comes_within_50_years() -> None:
    # The only such days are the first of the month, which is never in its fifth week.
    for expression in ("0 0 */31 * 1#5", "* * */31 * 1#5", "* * * */31 * 1#5"):
        assert Schedule(expression, BERLIN).next_after(0) is None


def test_space_between_fields_does_not_matter() -> None:
    assert Schedule("  */5  *\t* * * ", UTC).expression == "*/5 * * * *"


@pytest.mark.parametrize("expression", ["", "* * * *", "60 * * * *", "* * * * MON-SUN", "@daily"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises(CronSimError):
        Schedule(expression, UTC)


@pytest.mark.parametrize("expression", ["*/5 * * * *", "*/20 * * * * *", "30 2 * * *", "0 0 1 1 *"])
@pytest.mark.parametrize("most", [1, 2, 7, 1_000])
@pytest.mark.parametrize("behind", [timedelta(minutes=7), timedelta(days=3), timedelta(days=800)])
def test_missed_gives_the_latest_in_order(expression: str, most: int, behind: timedelta) -> None:
    schedule, now_ms = Schedule(expression, BERLIN), ms("2024-10-27 01:30:00")
    after_ms = now_ms - behind // timedelta(milliseconds=1)
    found = schedule.missed(after_ms, now_ms, most)
    assert len(found) <= most
    if found:
        assert schedule.next_after(found[-1]) == schedule.next_after(now_ms)
        assert found[-1] <= now_ms
        assert all(schedule.next_after(one) == other for one, other in pairwise(found))
    if len(found) < most:
        assert schedule.next_after(after_ms) == [*found, schedule.next_after(now_ms)][0]


def test_missed_takes_now_but_not_the_time_before() -> None:
    schedule = Schedule("*/5 * * * *", UTC)
    first_ms, last_ms = ms("2026-05-01 12:00:00"), ms("2026-05-01 12:10:00")
    between_ms = first_ms + 5 * _MINUTE_MS
    assert schedule.missed(first_ms, last_ms, 9) == [between_ms, last_ms]
    assert schedule.missed(first_ms - 1, last_ms - 1, 9) == [first_ms, between_ms]
    assert schedule.missed(last_ms, last_ms, 9) == []
    assert schedule.missed(last_ms, first_ms, 9) == []
    assert schedule.missed(first_ms, last_ms, 0) == []


ZONES = [
    "UTC", "Europe/Berlin", "Europe/Dublin", "America/New_York", "America/Sao_Paulo",
    "America/St_Johns", "Africa/Cairo", "Africa/Casablanca", "Antarctica/Troll", "Asia/Kathmandu",
    "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham",
]  # fmt: skip


@cache
def changes(name: str) -> list[int]:
    """Days on which the clocks of a zone change, as ms."""
    zone = ZoneInfo(name)
    days = range(ms("2000-01-01"), ms("2037-12-31"), 24 * _HOUR_MS)
    offsets = [datetime.fromtimestamp(day / 1000, zone).utcoffset() for day in days]
    return [day for day, (one, other) in zip(days, pairwise(offsets), strict=False) if one != other]


def terms(low: int, high: int, names: str = "") -> st.SearchStrategy[str]:
    numbers = st.integers(low, high).map(str)
    spans = st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)
    # Of a step in a range of one number cronsim makes an open range: nobody means either.
    ranges = spans.filter(lambda span: span[0] < span[1]).map(lambda span: f"{span[0]}-{span[1]}")
    steps = st.tuples(st.just("*") | numbers | ranges, st.integers(1, high + 1))
    more = st.sampled_from(names.split()) if names else st.nothing()
    term = st.just("*") | numbers | ranges | steps.map(lambda step: f"{step[0]}/{step[1]}") | more
    return st.just("*") | term | st.lists(term, min_size=2, max_size=3).map(",".join)


_DAYS = st.just("*") | terms(1, 28, "L LW")
_WEEKDAYS = st.just("*") | terms(0, 7, "SUN MON fri SAT TUE#1 3#5 FRI#2 5L 0L 7L")
_MONTHS = st.just("*") | terms(1, 12, "JAN feb Mar OCT NOV DEC")
_MINUTELY = st.tuples(terms(0, 59), terms(0, 23), _DAYS, _MONTHS, _WEEKDAYS)
_SECONDLY = st.tuples(terms(0, 59), _MINUTELY).map(lambda both: (both[0], *both[1]))


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, str, int]:
    """An expression, a zone and a time, in half of the cases on a day when its clocks change."""
    name = draw(st.sampled_from(ZONES))
    anywhen = st.integers(ms("2000-01-01"), ms("2037-12-31"))
    days = st.sampled_from(changes(name) or [ms("2024-02-28")])
    near = st.tuples(days, st.integers(-6 * _HOUR_MS, 24 * _HOUR_MS)).map(sum)
    return " ".join(draw(_MINUTELY | _SECONDLY)), name, draw(anywhen | near)


@settings(deadline=None, max_examples=60)
@given(questions())
@example(("0 12 * * *", "Pacific/Apia", ms("2011-12-30 06:00")))
def test_any_expression_is_due_when_the_clock_on_the_wall_says(case: tuple[str, str, int]) -> None:
    expression, name, after_ms = case
    schedule, oracle = Schedule(expression, ZoneInfo(name)), Oracle(expression, ZoneInfo(name))
    until_ms = after_ms + (30 * _HOUR_MS if oracle.step_s == 60 else 20 * _MINUTE_MS)
    right = oracle.ticks(after_ms, until_ms)
    assert schedule.missed(after_ms, until_ms, 2_000) == right
    chain = [after_ms]
    while (tick_ms := schedule.next_after(chain[-1])) is not None and tick_ms <= until_ms:
        assert tick_ms > chain[-1]
        chain.append(tick_ms)
        if len(chain) > 60:
            break
    assert chain[1:] == right[:60]


def test_asking_is_cheap_enough_for_the_loop() -> None:
    after_ms = ms("2026-05-01 12:03:10")
    # Ten and more times what they take: slow machines pass, a walk minute by minute does not.
    for expression, most_s in (("*/5 * * * *", 0.001), ("* * 1 1 *", 0.02), ("0 0 1 1 *", 0.02)):
        schedule = Schedule(expression, BERLIN)
        assert min(_takes_s(schedule, after_ms) for _ in range(5)) < most_s


def _takes_s(schedule: Schedule, after_ms: int) -> float:
    start_s = time.perf_counter()
    schedule.next_after(after_ms)
    return time.perf_counter() - start_s


_FIELDS = (
    "{} takes 5 fields (minute, hour, day of month, month, day of week), or 6 with the second"
    " before them, not {}."
)
_NEVER = "{} never fires: no such day comes within 50 years."


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (None, "{}: a cron expression is a string such as '*/5 * * * *'."),
        (b"* * * * *", "{}: a cron expression is a string such as '*/5 * * * *'."),
        ("", _FIELDS.format("{}", 0)),
        ("@daily", _FIELDS.format("{}", 1)),
        ("* * * *", _FIELDS.format("{}", 4)),
        ("0 * * * * * *", _FIELDS.format("{}", 7)),
        ("60 * * * *", "{} cannot be read: Bad minute."),
        ("*/0 * * * *", "{} cannot be read: Bad minute."),
        ("60 * * * * *", "{} cannot be read: Bad second."),
        ("0 24 * * *", "{} cannot be read: Bad hour."),
        ("0 0 30 2 *", "{} cannot be read: Bad day-of-month."),
        ("0 0 * 13 *", "{} cannot be read: Bad month."),
        ("0 0 * * FRI-MON", "{} cannot be read: Bad day-of-week."),
        ("0 0 */31 * MON#5", _NEVER),
        ("* * */31 * MON#5", _NEVER),
    ],
)
def test_an_expression_that_cannot_be_is_told(expression: Any, message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        cron(expression, "refresh")
    assert str(wrong.value) == message.format(f"cron({expression!r})")


@given(st.text("0123456789*/,-#LW MONJAN", max_size=20) | st.text(max_size=12))
def test_no_text_raises_anything_else(text: str) -> None:
    for expression in (text, f"* * {text} * *", f"0 0 * * {text}", f"{text} * * * *"):
        try:
            assert isinstance(cron(expression, "refresh"), CronJob)
        except ConfigError:
            continue


def test_a_number_without_end_is_told() -> None:
    with pytest.raises(ConfigError, match=r"9' \*|\*'\) cannot be read: "):
        cron("9" * 5_000 + " * * * *", "refresh")
