"""Cron entries: what a user writes (`cron`), and what the worker makes of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSimError

from fastq.conversion import to_plain
from fastq.errors import ConfigError, SerializationError, sentence
from fastq.functions import Call, FunctionInfo, describe
from fastq.parameters import misfit
from fastq.schedule import Schedule
from fastq.serializers import Codec

_ordered = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic")


@dataclass(frozen=True, slots=True)
class CronEntry:
    """A cron entry as the worker has it: what is enqueued, and when."""

    name: str
    function: str
    payload: bytes
    fields: tuple[bytes, ...]
    schedule: Schedule
    unique: bool
    catch_up: bool
    call: Call[Any]


@dataclass(frozen=True, slots=True)
class CronJob:
    """What `cron_jobs` of the settings are made of; made by `cron`."""

    expression: str
    call: Call[Any]
    name: str | None
    timezone: tzinfo | None
    unique: bool
    catch_up: bool

    def entry(self, codec: Codec, timezone: tzinfo) -> CronEntry:
        """Checked and packed; `timezone` where it has none of its own. `ConfigError`."""
        function, payload = self._packed(codec)
        options = self.call._options
        return CronEntry(
            self.name or _default_name(function, self.call, payload),
            function,
            payload,
            () if options is None else options.fields(),
            Schedule(self.expression, self.timezone or timezone),
            self.unique,
            self.catch_up,
            self.call,
        )

    def _packed(self, codec: Codec) -> tuple[str, bytes]:
        fn, args, kwargs = self.call.fn, self.call.args, self.call.kwargs
        name, parameters = (fn, None) if isinstance(fn, str) else _described(fn)
        if not isinstance(fn, str) and (problem := misfit(describe(fn).shape, len(args), kwargs)):
            raise ConfigError(f"cron({self.expression!r}): {problem}")
        try:
            return name, codec.dump_call(args, kwargs, parameters)
        except SerializationError as error:
            raise ConfigError(f"cron({self.expression!r}): {sentence(error)}") from error


def _default_name(function: str, call: Call[Any], payload: bytes) -> str:
    if not (call.args or call.kwargs):
        return function
    # All processes must agree on it: a set has another order in each, and so has its payload, which
    # stands for what only the serializer of the settings can carry.
    with suppress(Exception):
        payload = _ordered.encode((call.args, call.kwargs))
    return f"{function}-{hashlib.sha1(payload, usedforsecurity=False).hexdigest()[:8]}"


def _described(fn: Callable[..., Any]) -> tuple[str, Any]:
    info = describe(fn)
    return info.name, info.shape.positional


def cron(
    expression: str,
    fn: Call[Any] | Callable[..., Any] | str,
    *,
    name: str | None = None,
    timezone: str | tzinfo | None = None,
    unique: bool = True,
    catch_up: bool = False,
) -> CronJob:
    """An entry of `cron_jobs`: enqueues `fn` at each tick, once for any number of workers.

    `expression`: minute, hour, day of month, month, day of week, and seconds before them if there
    are six; names such as `MON` and `JAN`, `L` and `#` as in `cronsim`. `fn`: a function, its name,
    or `fastq.call(fn, …)`, which may carry `.options(timeout=…, max_tries=…, keep_result=…)`.
    `name` tells entries apart; without one it is the function's, with a hash of its arguments.
    `timezone`: else that of the settings. `unique`: a tick is skipped while the last run waits or
    runs. A tick that is up to 60 s late still fires; with `catch_up` any that was missed (the
    latest 1,000). A time of day that a change of the clocks skips or repeats comes once; what
    repeats within the hour goes by real time. `ConfigError` for what cannot be.
    """
    title = f"cron({expression!r})"
    zone = None if timezone is None else zone_of(f"{title}: timezone", timezone)
    _check_expression(title, expression)
    call = fn if isinstance(fn, Call) else Call(fn, (), {})
    if not (isinstance(call.fn, str) or callable(call.fn)):
        raise ConfigError(f"{title} takes a function, its name or fastq.call(…), not {fn!r}.")
    if call._options is not None and call._options.recorded:
        raise ConfigError(
            f"{title}: job_id, defer_by, defer_until and expires are no options of a cron job: "
            "its ticks say when it is due."
        )
    if name is not None and (not isinstance(name, str) or not name or not name.isprintable()):
        raise ConfigError(f"{title}: name must be a non-empty string, not {name!r}.")
    for flag, value in (("unique", unique), ("catch_up", catch_up)):
        if not isinstance(value, bool):
            raise ConfigError(f"{title}: {flag} must be True or False, not {value!r}.")
    return CronJob(expression, call, name, zone, unique, catch_up)


def _check_expression(title: str, expression: object) -> None:
    if not isinstance(expression, str):
        raise ConfigError(f"{title}: a cron expression is a string such as '*/5 * * * *'.")
    if len(expression.split()) not in (5, 6):
        raise ConfigError(
            f"{title} takes 5 fields (minute, hour, day of month, month, day of week), or 6 with "
            f"the second before them, not {len(expression.split())}."
        )
    try:
        first = Schedule(expression, UTC).next_after(int(datetime.now(UTC).timestamp()) * 1000)
    except (CronSimError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ConfigError(f"{title} cannot be read: {error}.") from None
    if first is None:
        raise ConfigError(f"{title} never fires: no such day comes within 50 years.")


def zone_of(name: str, value: object) -> tzinfo:
    """A time zone by its name, such as "Europe/Berlin", or `ConfigError`."""
    if isinstance(value, tzinfo):
        return value
    if isinstance(value, str):
        try:
            return ZoneInfo(value)
        except (OSError, ValueError, LookupError):
            pass
    raise ConfigError(
        f"{name} must be the name of a time zone such as 'Europe/Berlin', or a tzinfo, "
        f"not {value!r}."
    )


def cron_entries(
    jobs: Any, functions: dict[str, FunctionInfo], codec: Codec, timezone: tzinfo
) -> tuple[CronEntry, ...]:
    """The entries of a worker; functions that only they name are added to its functions."""
    if isinstance(jobs, str | Mapping) or not isinstance(jobs, Sequence):
        raise ConfigError(f"cron_jobs must be a list of cron(…), not {jobs!r}.")
    found: dict[str, CronEntry] = {}
    for job in jobs:
        if not isinstance(job, CronJob):
            raise ConfigError(f"cron_jobs: {job!r} is not made by cron(…).")
        entry = job.entry(codec, timezone)
        _register(job, entry, functions)
        if found.setdefault(entry.name, entry) is not entry:
            raise ConfigError(
                f"cron_jobs: two are called {entry.name!r}. Give one of them another name."
            )
    return tuple(found.values())


def _register(job: CronJob, entry: CronEntry, functions: dict[str, FunctionInfo]) -> None:
    fn = job.call.fn
    if isinstance(fn, str):
        if fn not in functions:
            raise ConfigError(
                f"cron({job.expression!r}): no function is called {fn!r}. Add it to functions."
            )
        return
    info = describe(fn)
    other = functions.setdefault(entry.function, info)
    if other.call is not info.call:
        raise ConfigError(
            f"cron({job.expression!r}): another function is called {entry.function!r}. "
            "Give one of them another name: @job(name=…)."
        )
    if other.options != info.options:
        raise ConfigError(
            f"cron({job.expression!r}): {entry.function!r} is among the worker's functions with "
            "other options. Give one of them another name: @job(name=…)."
        )
