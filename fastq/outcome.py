"""What a run means: how it ended, what follows from that, and how it is stored."""

from __future__ import annotations

import enum
import traceback
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

Status = Literal["complete", "failed"]
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


class Verdict(NamedTuple):
    """What follows: the status and reason that are stored, and whether the job goes to `dead`."""

    status: Status
    reason: str
    bury: bool


_VERDICTS = {
    Ending.RETURNED: Verdict("complete", "", bury=False),
    Ending.RAISED: Verdict("failed", "failed", bury=True),
    Ending.OVERDUE: Verdict("failed", "timeout", bury=True),
    Ending.UNFIT_ARGUMENTS: Verdict("failed", "arguments", bury=True),
    Ending.UNDECODABLE: Verdict("failed", "undecodable", bury=True),
    Ending.UNKNOWN_FUNCTION: Verdict("failed", "unknown_function", bury=True),
}


def decide(ending: Ending) -> Verdict:
    """What follows from an ending."""
    return _VERDICTS[ending]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, as `on_job_end` is told. `error` is the exception itself, if any."""

    status: Status
    reason: str = ""
    value: Any = None
    error: BaseException | None = None


def bad_outcome(ending: Ending, error: BaseException) -> Outcome:
    """The outcome of a run that ended badly."""
    verdict = decide(ending)
    return Outcome(verdict.status, verdict.reason, error=error)


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
        if len(words) < 5 or words[0] not in ("complete", "failed"):
            raise ValueError(f"not an outcome: {data[:60]!r}")
        status: Status = "complete" if words[0] == "complete" else "failed"
        reason = "" if words[1] == "-" else words[1]
        return cls(status, reason, int(words[2]), int(words[3]), int(words[4]), body)

    @property
    def error(self) -> ErrorText:
        """The body of a failure."""
        return msgspec.json.decode(self.body, type=ErrorText)
