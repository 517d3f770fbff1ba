"""What a run means: how it ended, what follows from that, and how it is stored."""

from __future__ import annotations

import enum
import traceback
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import msgspec

from fastq.retries import Backoff, Reject, Retry

Status = Literal["complete", "failed", "expired"]
_STATUSES = get_args(Status)
# A traceback of a deep recursion can have megabytes; both ends of it tell what happened.
_MAX_TEXT = 16_384


class Ending(enum.Enum):
    """How a run ended, or why it never began."""

    RETURNED = enum.auto()
    RAISED = enum.auto()
    OVERDUE = enum.auto()
    UNFIT_ARGUMENTS = enum.auto()
    UNDECODABLE = enum.auto()
    UNKNOWN_FUNCTION = enum.auto()
    EXPIRED = enum.auto()


class Action(enum.Enum):
    """What is done with a job whose run has ended."""

    COMPLETE = enum.auto()
    RETRY = enum.auto()
    BURY = enum.auto()


class Verdict(NamedTuple):
    """What follows from an ending.

    `status` and `reason` are what is stored; of a retry, where it waits and why. `defer_s` is the
    delay of a retry that has asked for one; None leaves it to the backoff.
    """

    action: Action
    status: Literal[Status, "deferred"]
    reason: str
    defer_s: float | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """When a job runs again: how often at most, after which errors, and how long it waits."""

    max_tries: int
    retry_on: tuple[type[BaseException], ...]
    backoff: Backoff


# An unknown function may be known to a newer worker: while these are rolled out, its jobs go round.
_UNKNOWN_DELAYS_S = (1.0, 2.0, 4.0, 8.0)
UNKNOWN = Policy(len(_UNKNOWN_DELAYS_S) + 1, (), lambda tries: _UNKNOWN_DELAYS_S[tries - 1])

# An entry that names no function will be known to nobody.
NAMELESS = Policy(1, (), UNKNOWN.backoff)
# Of these no code was run.
NO_RUN = frozenset((Ending.UNKNOWN_FUNCTION, Ending.EXPIRED))

_COMPLETE = Verdict(Action.COMPLETE, "complete", "")
# Endings that another run on this code, or at this time, would not change.
_FINAL = {
    Ending.UNFIT_ARGUMENTS: Verdict(Action.BURY, "failed", "arguments"),
    Ending.UNDECODABLE: Verdict(Action.BURY, "failed", "undecodable"),
    Ending.EXPIRED: Verdict(Action.BURY, "expired", "expired"),
}
# What it is called when it does not run again, and when it has run as often as it may.
_REASONS = {
    Ending.RAISED: ("failed", "retries"),
    Ending.OVERDUE: ("timeout", "timeout"),
    Ending.UNKNOWN_FUNCTION: ("unknown_function", "unknown_function"),
}


def decide(ending: Ending, error: BaseException | None, tries: int, policy: Policy) -> Verdict:
    """What follows from an ending. `tries` counts the runs, the one that has ended included."""
    if ending is Ending.RETURNED:
        return _COMPLETE
    if ending in _FINAL:
        return _FINAL[ending]
    if isinstance(error, Reject):
        return Verdict(Action.BURY, "failed", "rejected")
    once, exhausted = _REASONS[ending]
    if not _may_retry(ending, error, policy):
        return Verdict(Action.BURY, "failed", once)
    if tries >= policy.max_tries:
        return Verdict(Action.BURY, "failed", exhausted)
    defer_s = error.defer_s if isinstance(error, Retry) else None
    return Verdict(Action.RETRY, "deferred", "retry", defer_s)


def _may_retry(ending: Ending, error: BaseException | None, policy: Policy) -> bool:
    if ending is Ending.UNKNOWN_FUNCTION or isinstance(error, Retry):
        return True
    return isinstance(error, policy.retry_on)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended, as `on_job_end` is told. `error` is the exception itself, if any.

    `deferred` with the reason `retry` is a run after which the job runs again.
    """

    status: Literal[Status, "deferred"]
    reason: str = ""
    value: Any = None
    error: BaseException | None = None


class ErrorText(msgspec.Struct, frozen=True):
    """An exception as it travels: texts only."""

    type: str
    message: str
    traceback: str = ""

    @classmethod
    def of(cls, error: BaseException) -> ErrorText:
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return cls(module + kind.__qualname__, _cut(_message(error)), _cut(_traceback(error)))


# Both run code of the error's own class, which may raise whatever it likes.


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:
        return f"(its __str__ raised {type(broken).__name__})"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as broken:
        return f"(it cannot be formatted: {type(broken).__name__})"


def _cut(text: str) -> str:
    # Lone surrogates are legal in str, yet no JSON can carry them.
    text = text.encode("utf-8", "backslashreplace").decode()
    half = _MAX_TEXT // 2
    return text if len(text) <= _MAX_TEXT else f"{text[:half]}\n[...]\n{text[-half:]}"


class Envelope(NamedTuple):
    """A stored outcome: one line of words, then the value as the serializer made it, or the error.

    `STATUS REASON STARTED_MS FINISHED_MS TRIES\\n` and a body. The reason of a success is `-`.
    Readers pass over further words. The core packs successes in this form itself.
    """

    status: Status
    reason: str
    started_ms: int
    finished_ms: int
    tries: int
    body: bytes

    def pack(self) -> bytes:
        head = (self.status, self.reason or "-", self.started_ms, self.finished_ms, self.tries)
        return " ".join(map(str, head)).encode() + b"\n" + self.body

    @classmethod
    def unpack(cls, data: bytes) -> Envelope:
        """Reads a stored outcome; `ValueError` if it is none."""
        head, _, body = data.partition(b"\n")
        words = head.decode().split(" ")
        if len(words) < 5 or words[0] not in _STATUSES:
            raise ValueError(f"not an outcome: {data[:60]!r}")
        status = cast(Status, words[0])
        reason = "" if words[1] == "-" else words[1]
        return cls(status, reason, int(words[2]), int(words[3]), int(words[4]), body)

    @property
    def error(self) -> ErrorText:
        """The body of a failure."""
        return msgspec.json.decode(self.body, type=ErrorText)
