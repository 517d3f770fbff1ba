"""What an entry carries besides its arguments, and what is written of it when its run has ended."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import msgspec

from fastq._core import Keep, Run
from fastq.context import enqueued_ms
from fastq.decoders import UndecodableError
from fastq.errors import JobExpired

INFINITE = float("inf")
Part = bytes | str | int
# What durations may be at most in the settings, too.
_MOST_MS = 10**12
_FIELDS = ("f", "d", "o", "k", "x")
_FIELDS_OF = attrgetter("name", "payload", "options", "keep_field", "expires_field")


class EntryOptions(msgspec.Struct):
    """Field `o` of an entry, as far as this version knows it."""

    timeout: float | msgspec.UnsetType | None = msgspec.UNSET
    max_tries: int | None = None


def configure(run: Run, now_ms: int) -> None:
    """Options that came with the entry go before the function's own.

    `JobExpired` if it is too late to start it; `now_ms` is the server's time.
    """
    keep_as_asked(run)
    timeout_s = options_of(run).timeout
    if timeout_s is not msgspec.UNSET:
        run.limit_s = INFINITE if timeout_s is None else timeout_s
    if is_expired(run, now_ms):
        raise expired()


def keep_as_asked(run: Run) -> None:
    """How long its result is kept, if the entry says so."""
    if run.keep_field is not None:
        kept_ms = int(run.keep_field)
        if kept_ms > _MOST_MS:
            raise ValueError(f"field k is {kept_ms} ms: the server cannot keep a result so long")
        run.keep = keep_of(None if kept_ms < 0 else kept_ms)


def expired() -> JobExpired:
    """What a job ends with that may not be started any more."""
    return JobExpired("It had expired before a worker was free to start it.")


def is_expired(run: Run, now_ms: int) -> bool:
    """True if the job may not be started any more."""
    return run.expires_field is not None and int(run.expires_field) <= now_ms


def options_of(run: Run) -> EntryOptions:
    """Field `o`, decoded."""
    if run.options is None:
        return EntryOptions()
    try:
        return msgspec.json.decode(run.options, type=EntryOptions)
    except msgspec.DecodeError as error:
        raise UndecodableError(f"the entry's options (field o): {error}") from error


def keep_of(kept_ms: float | None) -> Keep | None:
    """How the core keeps results: None for not at all. `kept_ms` 0 is that, None is for ever."""
    if kept_ms is None:
        return Keep(None)
    return Keep(max(1, int(kept_ms))) if kept_ms else None


def ms_of(duration_s: float | None) -> float | None:
    """Seconds as milliseconds; None stays None."""
    return None if duration_s is None else duration_s * 1000


def keep_ms(keep: Keep | None) -> int:
    """As scripts have it: 0 for not at all, -1 for ever."""
    if keep is None:
        return 0
    return -1 if keep.ms is None else keep.ms


def dead_fields(run: Run, tries: int, reason: str, error: bytes) -> tuple[Part, ...]:
    """An entry of `dead`: everything needed to run the job again, and why it ended."""
    fields = ("id", run.id, "reason", reason, "error", error, "tries", tries)
    return (*fields, "e", enqueued_ms(run), *_carried(run))


def retry_fields(run: Run, *, early: int = 0) -> tuple[Part, ...]:
    """The entry of the job's next run. `early`: how often nobody knew its function."""
    fields: tuple[Part, ...] = ("e", enqueued_ms(run), *_carried(run))
    # A run that nobody could start was none.
    tries = run.tries - 1 if early else run.tries
    return (*fields, "t", tries, *(("u", early) if early else ()))


def early_tries(run: Run) -> int:
    """How often the job went round because nobody knew its function."""
    more = run.more or []
    for name, value in zip(more[::2], more[1::2], strict=True):
        if name == b"u" and value.isdigit():
            return int(value)
    return 0


def _carried(run: Run) -> Iterator[Part]:
    """What every copy of an entry has: all fields but those that count."""
    more = run.more or []
    for name, value in zip(more[::2], more[1::2], strict=True):
        if name != b"u":
            yield name
            yield value
    for known, field in zip(_FIELDS, _FIELDS_OF(run), strict=True):
        if field is not None:
            yield known
            yield field


def unknown_function(run: Run) -> str:
    """What to say of an entry whose function is not known here."""
    if run.name is None:
        return "The entry names no function: its field f is missing."
    return (
        f"No function {run.name.decode(errors='replace')!r} is registered in this worker. "
        "Add it to functions, or deploy the workers that know it."
    )


def too_long(run: Run, error: BaseException | None) -> TimeoutError:
    """What a run over its time limit ends with; the cancellation shows where it was."""
    late = TimeoutError(f"ran longer than its time limit of {run.limit_s:g} s")
    late.__cause__ = error
    return late
