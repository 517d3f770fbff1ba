"""What an entry carries besides its arguments, and what `dead` keeps of it."""

from __future__ import annotations

import msgspec

from fastq._core import Keep, Run
from fastq.decoders import UndecodableError

INFINITE = float("inf")
Part = bytes | str | int
# What durations may be at most in the settings, too.
_MOST_MS = 10**12


class EntryOptions(msgspec.Struct):
    """Field `o` of an entry, as far as this version knows it."""

    timeout: float | msgspec.UnsetType | None = msgspec.UNSET


def configure(run: Run) -> None:
    """Options that came with the entry go before the function's own."""
    if run.keep_field is not None:
        kept_ms = int(run.keep_field)
        if kept_ms > _MOST_MS:
            raise ValueError(f"field k is {kept_ms} ms: the server cannot keep a result so long")
        run.keep = keep_of(None if kept_ms < 0 else kept_ms)
    if run.options is not None:
        try:
            timeout_s = msgspec.json.decode(run.options, type=EntryOptions).timeout
        except msgspec.DecodeError as error:
            raise UndecodableError(f"the entry's options (field o): {error}") from error
        if timeout_s is not msgspec.UNSET:
            run.limit_s = INFINITE if timeout_s is None else timeout_s


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


def dead_fields(run: Run, reason: str, error: bytes) -> tuple[Part, ...]:
    """An entry of `dead`: everything needed to run the job again, and why it ended."""
    fields: list[Part] = ["id", run.id, "reason", reason, "error", error, "tries", run.tries]
    fields += run.more or ()
    for name, value in (
        ("f", run.name),
        ("d", run.payload),
        ("o", run.options),
        ("k", run.keep_field),
    ):
        if value is not None:
            fields += (name, value)
    return tuple(fields)


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
