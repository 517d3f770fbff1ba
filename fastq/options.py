"""What a producer asks of a job: where it waits, how long it may take, how often it is tried."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import orjson

from fastq.durations import UNSET, Duration, Unset, duration_s, keep_s, limit_s
from fastq.errors import ConfigError
from fastq.retries import tries_of

_MOST_ID = 512
# What the server gives out itself, and what cron entries use.
_TAKEN = re.compile(r"\d+-\d+|cron:.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    """Options of one job, checked. What is unset is the function's or the worker's to say."""

    job_id: str | Unset = UNSET
    defer_by_ms: int | Unset = UNSET
    defer_until_ms: int | Unset = UNSET
    expires_ms: int | Unset = UNSET
    timeout_s: float | Unset | None = UNSET
    max_tries: int | Unset = UNSET
    keep_ms: int | Unset = UNSET

    @property
    def recorded(self) -> bool:
        """True if the job needs a record: an id that the producer knows, a time, or both."""
        later = not isinstance(self.defer_until_ms, Unset) or bool(self.defer_by_ms)
        return later or bool(self.job_id) or not isinstance(self.expires_ms, Unset)

    def fields(self) -> tuple[bytes, ...]:
        """The entry's further fields and values."""
        found: tuple[bytes, ...] = ()
        if not isinstance(self.keep_ms, Unset):
            found += (b"k", b"%d" % self.keep_ms)
        options: dict[str, Any] = {}
        if not isinstance(self.timeout_s, Unset):
            options["timeout"] = self.timeout_s
        if not isinstance(self.max_tries, Unset):
            options["max_tries"] = self.max_tries
        return (*found, b"o", orjson.dumps(options)) if options else found

    def over(self, other: EnqueueOptions) -> EnqueueOptions:
        """These options, and what they leave unset as `other` has it."""
        mine = {name: value for name in _NAMES if (value := getattr(self, name)) is not UNSET}
        theirs = {name: value for name in _NAMES if (value := getattr(other, name)) is not UNSET}
        if mine.keys() & _DUE:
            theirs = {name: value for name, value in theirs.items() if name not in _DUE}
        return checked(EnqueueOptions(**(theirs | mine)))


_NAMES = tuple(field.name for field in fields(EnqueueOptions))
# Of these one replaces the other.
_DUE = {"defer_by_ms", "defer_until_ms"}


def enqueue_options(
    *,
    job_id: str | None = None,
    defer_by: Duration | None = None,
    defer_until: datetime | None = None,
    expires: Duration | None = None,
    timeout: Duration | Unset | None = UNSET,
    max_tries: int | None = None,
    keep_result: Duration | Unset | None = UNSET,
) -> EnqueueOptions:
    """Options as they are given: `ConfigError` for one that cannot be, `ValueError` for a naive
    datetime.
    """
    if defer_by is not None and defer_until is not None:
        raise ConfigError("defer_by and defer_until exclude each other: give one of them.")
    return checked(
        EnqueueOptions(
            job_id=UNSET if job_id is None else _own_id(job_id),
            defer_by_ms=UNSET if defer_by is None else _defer_by_ms(defer_by),
            defer_until_ms=UNSET if defer_until is None else _time_ms("defer_until", defer_until),
            expires_ms=UNSET if expires is None else _ms(duration_s("expires", expires)),
            timeout_s=timeout if isinstance(timeout, Unset) else limit_s("timeout", timeout),
            max_tries=UNSET if max_tries is None else tries_of(max_tries),
            keep_ms=keep_result if isinstance(keep_result, Unset) else keep_ms_of(keep_result),
        )
    )


def checked(options: EnqueueOptions) -> EnqueueOptions:
    """The options themselves, if they fit each other."""
    by_ms, expires_ms = options.defer_by_ms, options.expires_ms
    if not (isinstance(by_ms, Unset) or isinstance(expires_ms, Unset)) and by_ms >= expires_ms:
        raise ConfigError(
            f"The job would be due {by_ms / 1000:g} s after it is enqueued, and expire "
            f"{expires_ms / 1000:g} s after: let it expire later. Both count from enqueueing."
        )
    return options


def _own_id(job_id: object) -> str:
    if not isinstance(job_id, str) or not job_id.isprintable() or not job_id:
        raise ConfigError(f"job_id must be a non-empty, printable string, not {job_id!r}.")
    if len(job_id.encode("utf-8", "replace")) > _MOST_ID:
        raise ConfigError(f"job_id has more than {_MOST_ID} bytes: {job_id[:40]!r}…")
    if _TAKEN.fullmatch(job_id):
        raise ConfigError(
            f"job_id {job_id!r} cannot be used: ids of the form digits-digits are the server's, "
            "and cron:… are those of cron jobs. Put a word before it."
        )
    return job_id


def _defer_by_ms(defer_by: Duration) -> int:
    return _ms(duration_s("defer_by", defer_by, also=", or 0 for at once", zero=True))


def _ms(duration: float) -> int:
    # Rounded up: a job must not run early, and what is positive must not become "at once".
    return -int(-duration * 1000 // 1)


def _time_ms(name: str, value: object) -> int:
    if not isinstance(value, datetime):
        raise ConfigError(f"{name} must be an aware datetime, not {value!r}.")
    if value.utcoffset() is None:
        raise ValueError(
            f"{name} is a naive datetime ({value!r}), which may mean any time zone. "
            "Give it one: datetime.now(UTC), or .astimezone()."
        )
    return max(0, _ms(value.timestamp()))


def keep_ms_of(value: Duration | None) -> int:
    """As the entry's field `k` has it: 0 for not at all, -1 for ever."""
    kept_s = keep_s("keep_result", value)
    return -1 if kept_s is None else max(1, int(kept_s * 1000)) if kept_s else 0
