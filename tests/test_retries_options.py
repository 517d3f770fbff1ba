"""What may be said of retries, where it is said, and what is answered to what cannot be."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import fastq
from fastq import ConfigError, Reject, Retry, WorkerSettings, exponential
from fastq.entries import EntryOptions
from fastq.functions import JobOptions, describe
from fastq.scripts import cap_of
from fastq.settings import Settings

DAY_S = 86_400


async def nothing() -> None: ...


def flat(tries: int) -> float:
    return 1.5


def two(tries: int, error: Exception) -> float:
    return 1.0


class Method:
    def wait(self, tries: int) -> timedelta:
        return timedelta(seconds=tries)


def read(**values: Any) -> Settings:
    made = type("Made", (WorkerSettings,), {"functions": (nothing,), **values})
    return Settings.read(made)


def options_of(**values: Any) -> JobOptions:
    return describe(fastq.job(nothing, **values)).options


def enqueue_options(**values: Any) -> Any:
    return fastq.Client("redis://localhost").options(**values)


NUMBER = "must be a positive number of seconds or a timedelta"
DEAD = (
    "keep_dead must be how many jobs that ended badly are kept and how long, such as "
    "(10_000, timedelta(days=7)), not "
)
BACKOFF = (
    "backoff must be a function that takes the number of runs so far and returns seconds, "
    "or exponential(…), not "
)
TRIES = "max_tries must be a whole number from 1 to 1000000, not "
TYPES = "retry_on must name exception types, not "
COUNT = "keep_dead: the count must be a whole number from 1 to 1000000000, not "
AGE = f"keep_dead: the time {NUMBER}, or None, not "

REFUSED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (exponential, {"base": 0}, f"exponential: base {NUMBER}, not 0."),
    (exponential, {"base": -1.5}, f"exponential: base {NUMBER}, not -1.5."),
    (exponential, {"base": "1"}, f"exponential: base {NUMBER}, not '1'."),
    (exponential, {"base": True}, f"exponential: base {NUMBER}, not True."),
    (exponential, {"base": math.nan}, f"exponential: base {NUMBER}, not nan."),
    (exponential, {"maximum": 0}, f"exponential: maximum {NUMBER}, not 0."),
    (exponential, {"maximum": math.inf}, f"exponential: maximum {NUMBER}, not inf."),
    (exponential, {"maximum": None}, f"exponential: maximum {NUMBER}, not None."),
    (exponential, {"factor": 0.5}, "exponential: factor must be a number from 1 on, not 0.5."),
    (exponential, {"factor": "2"}, "exponential: factor must be a number from 1 on, not '2'."),
    (exponential, {"factor": True}, "exponential: factor must be a number from 1 on, not True."),
    (exponential, {"factor": math.nan}, "exponential: factor must be a number from 1 on, not nan."),
    (Retry, {"defer": -1}, f"Retry: defer {NUMBER}, or 0 for at once, not -1."),
    (Retry, {"defer": "5"}, f"Retry: defer {NUMBER}, or 0 for at once, not '5'."),
    (Retry, {"defer": math.nan}, f"Retry: defer {NUMBER}, or 0 for at once, not nan."),
    (Retry, {"defer": 1e9}, f"Retry: defer {NUMBER}, or 0 for at once, not 1000000000.0."),
    (Retry, {"defer": timedelta(seconds=-1)}, f"Retry: defer {NUMBER}, or 0 for at once, not "
     "datetime.timedelta(days=-1, seconds=86399)."),
    (Retry, {"defer": True}, f"Retry: defer {NUMBER}, or 0 for at once, not True."),
    (read, {"keep_dead": 100}, f"{DEAD}100."),
    (read, {"keep_dead": None}, f"{DEAD}None."),
    (read, {"keep_dead": "ab"}, f"{DEAD}'ab'."),
    (read, {"keep_dead": (100,)}, f"{DEAD}(100,)."),
    (read, {"keep_dead": {1, 2}}, f"{DEAD}{{1, 2}}."),
    (read, {"keep_dead": (0, 5)}, f"{COUNT}0."),
    (read, {"keep_dead": (None, 5)}, f"{COUNT}None."),
    (read, {"keep_dead": (1.5, 5)}, f"{COUNT}1.5."),
    (read, {"keep_dead": (True, 5)}, f"{COUNT}True."),
    (read, {"keep_dead": (10**10, 5)}, f"{COUNT}10000000000."),
    (read, {"keep_dead": (5, 0)}, f"{AGE}0."),
    (read, {"keep_dead": (5, "week")}, f"{AGE}'week'."),
    (read, {"keep_dead": (5, timedelta(days=-1))}, f"{AGE}datetime.timedelta(days=-1)."),
]  # fmt: skip
# The same of settings and of @job.
SHARED: list[tuple[dict[str, Any], str]] = [
    ({"max_tries": 0}, f"{TRIES}0."),
    ({"max_tries": -1}, f"{TRIES}-1."),
    ({"max_tries": 2.0}, f"{TRIES}2.0."),
    ({"max_tries": True}, f"{TRIES}True."),
    ({"max_tries": "3"}, f"{TRIES}'3'."),
    ({"max_tries": 1_000_001}, f"{TRIES}1000001."),
    ({"retry_on": ValueError("x")}, f"{TYPES}ValueError('x')."),
    ({"retry_on": (OSError, "ValueError")}, f"{TYPES}'ValueError'."),
    ({"retry_on": "ValueError"}, f"{TYPES}'ValueError'."),
    ({"retry_on": ""}, f"{TYPES}''."),
    ({"retry_on": int}, f"{TYPES}<class 'int'>."),
    ({"retry_on": [OSError, None]}, f"{TYPES}None."),
    ({"backoff": 5}, f"{BACKOFF}5."),
    ({"backoff": "flat"}, f"{BACKOFF}'flat'."),
    ({"backoff": two}, f"{BACKOFF}{two!r}."),
    ({"backoff": dict}, f"{BACKOFF}<class 'dict'>."),
]
REFUSED += [(where, values, text) for values, text in SHARED for where in (read, options_of)]
REFUSED += [(read, {"max_tries": None}, f"{TRIES}None."),
            (read, {"retry_on": None}, f"{TYPES}None."),
            (read, {"backoff": None}, f"{BACKOFF}None."),
            (enqueue_options, {"max_tries": 0}, f"{TRIES}0."),
            (enqueue_options, {"max_tries": 1.5}, f"{TRIES}1.5.")]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_is_refused_where_it_is_said(number: int) -> None:
    where, values, text = REFUSED[number]
    with pytest.raises(ConfigError) as caught:
        where(**values)
    assert str(caught.value) == text


# What is taken


def test_the_defaults_are_those_of_the_manual() -> None:
    settings = read()
    policy = settings.policy
    assert (policy.max_tries, policy.retry_on) == (5, ())
    assert policy.backoff == exponential(base=1, factor=2, maximum=3600, jitter=True)
    assert policy.backoff == exponential() == WorkerSettings.backoff
    assert settings.keep_dead == (10_000, 7 * DAY_S)


def test_one_type_or_several_may_be_retried_on() -> None:
    for given_, taken in (
        (OSError, (OSError,)),
        ([OSError, ValueError], (OSError, ValueError)),
        (frozenset((KeyError,)), (KeyError,)),
        ((), ()),
        (BaseException, (BaseException,)),
    ):
        assert read(retry_on=given_).policy.retry_on == taken
        assert options_of(retry_on=given_).retry_on == taken


def test_any_callable_of_the_number_of_runs_is_a_backoff() -> None:
    method = Method().wait
    for backoff in (flat, method, lambda tries: 1, exponential(base=timedelta(seconds=2))):
        assert read(backoff=staticmethod(backoff)).policy.backoff == backoff
        assert read(backoff=backoff).policy.backoff == backoff
        assert options_of(backoff=backoff).backoff == backoff


def test_a_backoff_in_the_body_of_a_class_is_not_bound() -> None:
    class Made(WorkerSettings):
        functions = (nothing,)

        def backoff(tries: int) -> float:  # type: ignore[misc,override]
            return 10.0 * tries

    class Heir(Made):
        max_tries = 7

    class Wrong(WorkerSettings):
        functions = (nothing,)

        def backoff(self, tries: int) -> float:  # type: ignore[override]
            return 1.0

    for source in (Made, Made(), Heir):
        assert Settings.read(source).policy.backoff(3) == 30.0
    assert Settings.read(Heir).policy.max_tries == 7
    with pytest.raises(ConfigError, match="^backoff must be a function that takes the number"):
        Settings.read(Wrong)


def test_dead_jobs_are_kept_as_long_as_asked() -> None:
    for given_, taken, told in (
        ((1, None), (1, None), (1, 0)),
        ([50, 1.5], (50, 1.5), (50, 1_500)),
        ((10, timedelta(days=1)), (10, DAY_S), (10, DAY_S * 1_000)),
        # A time so short that it would be none must not become "for ever".
        ((10, 1e-9), (10, 1e-9), (10, 1)),
    ):
        kept = read(keep_dead=given_).keep_dead
        assert kept == taken
        assert cap_of(kept) == told


def test_job_says_nothing_of_what_it_is_not_given() -> None:
    assert options_of(name="other") == JobOptions(name="other", call=nothing)
    given_ = options_of(max_tries=1, retry_on=(), backoff=flat)
    # No type at all is said, too: the worker's are not asked.
    assert (given_.max_tries, given_.retry_on, given_.backoff) == (1, (), flat)


def test_entries_carry_max_tries_and_no_more_of_it() -> None:
    assert EntryOptions().max_tries is None
    assert dict(zip(*[iter(enqueue_options(max_tries=4)._fields)] * 2, strict=True)) == {
        b"o": b'{"max_tries":4}'
    }


# What a job raises


def test_retry_and_reject_say_why() -> None:
    assert str(Retry()) == "asked to run again"
    assert str(Retry("busy", defer=3)) == "busy"
    assert str(Reject("no address")) == "no address"
    assert not issubclass(Retry, fastq.FastqError | Reject)
    assert not issubclass(Reject, fastq.FastqError | Retry)


def test_retry_takes_seconds_or_a_timedelta() -> None:
    taken = [Retry(defer=defer).defer_s for defer in (None, 0, 0.0, 5, 0.25, timedelta(minutes=1))]
    assert taken == [None, 0, 0, 5, 0.25, 60]
