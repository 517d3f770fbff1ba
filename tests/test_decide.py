"""What follows from the end of a run: every ending, by its error and by how often the job ran."""

import asyncio
import itertools

import pytest

from fastq import Reject, Retry
from fastq.outcome import NAMELESS, UNKNOWN, Action, Ending, Policy, Verdict, decide

MOST = 3
COMPLETE = Verdict(Action.COMPLETE, "complete", "")
AGAIN = Verdict(Action.RETRY, "deferred", "retry", None)


def again_in(defer_s: float) -> Verdict:
    return Verdict(Action.RETRY, "deferred", "retry", defer_s)


def dead(reason: str, status: str = "failed") -> Verdict:
    return Verdict(Action.BURY, status, reason)  # type: ignore[arg-type]


class Later(Retry):
    """A job's own kind of it."""


class Unwanted(Reject, ConnectionError):
    """Final, though its other base is in retry_on."""


class Odd(BaseException):
    """Not an Exception."""


# A run that raised: while it may run again, and once it has run as often as it may. Of those that
# are never run again, the reason does not depend on how often they ran.
RAISED: dict[str, tuple[BaseException, Verdict, Verdict]] = {
    "of the types": (OSError(), AGAIN, dead("retries")),
    "of a base": (ConnectionResetError(), AGAIN, dead("retries")),
    "a time-out of its own": (TimeoutError(), AGAIN, dead("retries")),
    "of none": (ValueError(), dead("failed"), dead("failed")),
    "a wider type": (Exception(), dead("failed"), dead("failed")),
    "a group of them": (ExceptionGroup("", [OSError()]), dead("failed"), dead("failed")),
    "no exception": (Odd(), dead("failed"), dead("failed")),
    "cancelled": (asyncio.CancelledError(), dead("failed"), dead("failed")),
    "exit": (SystemExit(0), dead("failed"), dead("failed")),
    "retry": (Retry(), AGAIN, dead("retries")),
    "retry soon": (Retry(defer=2.5), again_in(2.5), dead("retries")),
    "retry at once": (Retry(defer=0), again_in(0.0), dead("retries")),
    "own retry": (Later(defer=1), again_in(1.0), dead("retries")),
    "reject": (Reject(), dead("rejected"), dead("rejected")),
    "own reject": (Unwanted(), dead("rejected"), dead("rejected")),
}
POLICIES = {
    "none": (),
    "some": (OSError,),
    "all": (BaseException,),
    "reject": (Reject,),
}
ERRORS: list[BaseException | None] = [None, *(row[0] for row in RAISED.values())]
TRIES = range(1, MOST + 3)
FINAL = {
    Ending.UNFIT_ARGUMENTS: dead("arguments"),
    Ending.UNDECODABLE: dead("undecodable"),
    Ending.EXPIRED: dead("expired", "expired"),
}


def policy(*retry_on: type[BaseException]) -> Policy:
    def unasked(tries: int) -> float:
        raise AssertionError("how long to wait is not decided here")

    return Policy(MOST, retry_on, unasked)


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("tries", TRIES)
def test_a_run_that_raised_runs_again_if_it_may(name: str, tries: int) -> None:
    error, before, at_last = RAISED[name]
    expected = before if tries < MOST else at_last
    assert decide(Ending.RAISED, error, tries, policy(OSError)) == expected


@pytest.mark.parametrize("name", RAISED)
@pytest.mark.parametrize("tries", TRIES)
def test_without_retry_on_only_retry_runs_again(name: str, tries: int) -> None:
    error, before, at_last = RAISED[name]
    asks = isinstance(error, Retry | Reject)
    expected = (before if tries < MOST else at_last) if asks else dead("failed")
    assert decide(Ending.RAISED, error, tries, policy()) == expected


@pytest.mark.parametrize("name", RAISED)
def test_reject_beats_any_retry_on(name: str) -> None:
    error = RAISED[name][0]
    for types in ((BaseException,), (Exception, Reject), (Reject,)):
        verdict = decide(Ending.RAISED, error, 1, policy(*types))
        assert (verdict == dead("rejected")) is isinstance(error, Reject)


@pytest.mark.parametrize("tries", TRIES)
def test_a_run_over_its_time_limit_runs_again_if_its_error_is_named(tries: int) -> None:
    for kind in (TimeoutError, OSError, Exception):
        verdict = decide(Ending.OVERDUE, TimeoutError(), tries, policy(ValueError, kind))
        assert verdict == (AGAIN if tries < MOST else dead("timeout"))
    for types in ((), (ValueError, ConnectionError, asyncio.CancelledError)):
        assert decide(Ending.OVERDUE, TimeoutError(), tries, policy(*types)) == dead("timeout")


@pytest.mark.parametrize("types", POLICIES)
@pytest.mark.parametrize("ending", FINAL, ids=lambda ending: str(ending.name))
def test_what_another_run_would_not_change_is_final(ending: Ending, types: str) -> None:
    for error, tries in itertools.product(ERRORS, TRIES):
        assert decide(ending, error, tries, policy(*POLICIES[types])) == FINAL[ending]


def test_an_unknown_function_goes_round_a_few_times_whatever_the_policy_of_jobs_is() -> None:
    error = LookupError()
    verdicts = [decide(Ending.UNKNOWN_FUNCTION, error, n, UNKNOWN) for n in range(1, 7)]
    assert verdicts == [AGAIN] * 4 + [dead("unknown_function")] * 2
    assert decide(Ending.UNKNOWN_FUNCTION, error, 1, NAMELESS) == dead("unknown_function")


@pytest.mark.parametrize("types", POLICIES)
@pytest.mark.parametrize("ending", Ending, ids=lambda ending: str(ending.name))
def test_no_combination_breaks_the_rules(ending: Ending, types: str) -> None:
    reasons = {"failed", "retries", "rejected", "timeout", "expired", "arguments", "undecodable"}
    for error, tries in itertools.product(ERRORS, TRIES):
        verdict = decide(ending, error, tries, policy(*POLICIES[types]))
        assert (verdict.action is Action.COMPLETE) is (ending is Ending.RETURNED)
        assert (verdict.action is Action.RETRY) is (verdict.status == "deferred")
        if verdict.action is Action.COMPLETE:
            assert verdict == COMPLETE
        elif verdict.action is Action.RETRY:
            assert tries < MOST
            assert not isinstance(error, Reject)
            assert verdict.defer_s == getattr(error, "defer_s", None)
        else:
            assert verdict.reason in reasons | {"unknown_function"}
            assert (verdict.status == "expired") is (ending is Ending.EXPIRED)
            assert verdict.defer_s is None
