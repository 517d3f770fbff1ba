"""How long a job that is retried waits: jitter, growth, and backoffs that fail."""

import itertools
import logging
import math
from datetime import timedelta
from fractions import Fraction
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastq import exponential
from fastq.retries import Exponential, delay_s


def test_without_jitter_delays_grow_by_the_factor_to_the_maximum() -> None:
    plain = exponential(jitter=False)
    assert [plain(tries) for tries in range(1, 6)] == [1, 2, 4, 8, 16]
    assert [plain(tries) for tries in (12, 13, 20, 1_000, 10**6, 10**9)] == [2048] + [3600] * 5
    steady = exponential(base=timedelta(milliseconds=500), factor=1, jitter=False)
    assert [steady(tries) for tries in (1, 2, 10**6)] == [0.5] * 3
    low = exponential(base=50, maximum=timedelta(seconds=20), jitter=False)
    assert low(1) == low(2) == 20


durations = st.floats(1e-3, 1e8)
growing = st.builds(
    exponential,
    base=durations,
    factor=st.floats(1, 1e5),
    maximum=durations,
    jitter=st.booleans(),
)


@given(growing, st.integers(1, 10**6))
def test_each_delay_lies_between_none_and_the_ceiling(backoff: Exponential, tries: int) -> None:
    ceiling_s = backoff.ceiling_s(tries)
    delay = backoff(tries)
    assert 0 <= delay <= ceiling_s <= backoff.maximum_s
    assert backoff.jitter or delay == ceiling_s
    assert delay_s(backoff, tries) <= ceiling_s
    assert backoff.ceiling_s(tries + 1) >= ceiling_s


@given(growing, st.integers(1, 40))
def test_the_ceiling_is_that_of_the_formula(backoff: Exponential, tries: int) -> None:
    exact = Fraction(backoff.base_s) * Fraction(backoff.factor) ** (tries - 1)
    expected = float(min(Fraction(backoff.maximum_s), exact))
    assert math.isclose(backoff.ceiling_s(tries), expected, rel_tol=1e-9)


def test_full_jitter_spreads_over_all_of_it() -> None:
    backoff = exponential(base=8, factor=2)
    drawn = sorted(backoff(3) / 32 for _ in range(2_000))
    # Each may fail once in 10**40 runs or so.
    assert drawn[0] < 0.05
    assert drawn[-1] > 0.95
    assert all(after - before < 0.05 for before, after in itertools.pairwise(drawn))


def test_a_backoff_may_say_seconds_or_a_timedelta() -> None:
    said: list[Any] = [0, 3, 2.5, timedelta(milliseconds=20)]
    found = [delay_s(cast(Any, lambda tries, value=value: value), 1) for value in said]
    assert found == [0, 3, 2.5, 0.02]
    asked: list[int] = []
    delay_s(lambda tries: asked.append(tries) or 1, 4)
    assert asked == [4]


def broken(tries: int) -> float:
    raise RuntimeError("on purpose")


NONSENSE: list[Any] = [-1, -0.001, math.nan, math.inf, 1e9, timedelta(seconds=-1)]


@pytest.mark.parametrize("number", range(len(NONSENSE)))
def test_a_delay_that_is_none_is_told_and_the_default_taken(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    value = NONSENSE[number]
    for _ in range(50):
        assert 0 <= delay_s(lambda tries: value, 3) <= 4
    told = -1.0 if isinstance(value, timedelta) else float(value)
    assert {record.getMessage() for record in caplog.records} == {
        f"backoff(3) gave {told!r}, which is no delay in seconds"
    }
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@pytest.mark.parametrize("backoff", [broken, lambda tries: None, lambda tries: "soon",
                                     lambda tries: 10**400, lambda tries: [1]],
                         ids=["raises", "None", "text", "huge", "list"])  # fmt: skip
def test_a_backoff_that_fails_is_told_and_the_default_taken(
    backoff: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(50):
        assert 0 <= delay_s(backoff, 2) <= 2
    assert {record.getMessage() for record in caplog.records} == {"backoff(2) failed"}
    assert all(record.exc_info for record in caplog.records)
