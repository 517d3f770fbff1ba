"""Worker settings: what a user writes (`WorkerSettings`) and what the worker reads (`Settings`)."""

from __future__ import annotations

import difflib
import inspect
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, timedelta, tzinfo
from typing import Any, ClassVar

from fastq.context import Context
from fastq.cron import CronEntry, CronJob, cron_entries, zone_of
from fastq.durations import Duration, duration_s, keep_s, limit_s, whole_number
from fastq.errors import ConfigError
from fastq.functions import FunctionInfo, collect
from fastq.keys import check_queue_name
from fastq.outcome import Outcome, Policy
from fastq.redis_settings import RedisSettings
from fastq.retries import (
    Backoff,
    Exponential,
    RetryOn,
    backoff_of,
    exception_types,
    exponential,
    tries_of,
)
from fastq.serializers import Codec, Serializer, resolve

MAX_PAYLOAD = 16 * 1024 * 1024
MOST_PAYLOAD = 512 * 1024 * 1024
"""What Redis takes as one string at the most, unless it is configured otherwise."""


class WorkerSettings:
    """Base of a settings class. Durations are seconds or `timedelta`.

    `functions` is required; all others have the defaults below. A class, an instance or a module
    with these names may be given to `fastq-worker`.
    """

    functions: Sequence[Callable[..., Any] | str] = ()
    redis: str | RedisSettings | None = None
    queues: Sequence[str] = ("default",)
    max_jobs: int = 100
    job_timeout: float | timedelta | None = 300
    keep_result: float | timedelta | None = 600
    max_tries: int = 5
    retry_on: RetryOn = ()
    # ClassVar, or mypy takes a function in the body of a class for a method.
    backoff: ClassVar[Backoff | Exponential] = exponential()
    keep_dead: tuple[int, Duration | None] = (10_000, timedelta(days=7))
    cron_jobs: Sequence[CronJob] = ()
    timezone: str | tzinfo = UTC
    shutdown_timeout: float | timedelta = 25
    lifespan: ClassVar[Callable[[Any], AbstractAsyncContextManager[Any]] | None] = None
    on_job_start: ClassVar[Callable[[Context], Awaitable[object]] | None] = None
    on_job_end: ClassVar[Callable[[Context, Outcome], Awaitable[object]] | None] = None
    serializer: str | Serializer = "json"
    max_payload: int = MAX_PAYLOAD
    burst: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A worker's settings, checked and complete. Durations are seconds."""

    functions: Mapping[str, FunctionInfo]
    redis: RedisSettings
    queue: str
    max_jobs: int
    job_timeout_s: float | None
    keep_result_s: float | None
    policy: Policy
    keep_dead: tuple[int, float | None]
    cron: tuple[CronEntry, ...]
    shutdown_timeout_s: float
    lifespan: Callable[[Any], AbstractAsyncContextManager[Any]] | None
    on_job_start: Callable[[Context], Awaitable[object]] | None
    on_job_end: Callable[[Context, Outcome], Awaitable[object]] | None
    codec: Codec
    serializer: str | Serializer
    max_payload: int
    burst: bool
    source: Any

    @classmethod
    def read(cls, source: Any, **overrides: Any) -> Settings:
        """Reads a settings class, instance or module. `ConfigError` says what is wrong with it.

        `overrides` are values under the same names, e.g. from the command line.
        """
        _check_source(source)
        values = {name: _value(source, name) for name in _NAMES}
        if unknown := overrides.keys() - values.keys():
            raise TypeError(f"Settings.read: there is no setting {min(unknown)!r}")
        values.update(overrides)
        codec = resolve(values["serializer"])
        functions = _functions(values["functions"])
        entries = cron_entries(
            values["cron_jobs"], functions, codec, zone_of("timezone", values["timezone"])
        )
        return cls(
            functions=functions,
            redis=RedisSettings.resolve(values["redis"]),
            queue=_queue(values["queues"]),
            max_jobs=whole_number("max_jobs", values["max_jobs"], most=100_000),
            job_timeout_s=limit_s("job_timeout", values["job_timeout"]),
            keep_result_s=keep_s("keep_result", values["keep_result"]),
            policy=Policy(
                tries_of(values["max_tries"]),
                exception_types(values["retry_on"]),
                backoff_of(values["backoff"]),
            ),
            keep_dead=_keep_dead(values["keep_dead"]),
            cron=entries,
            shutdown_timeout_s=duration_s(
                "shutdown_timeout", values["shutdown_timeout"], also=", or 0", zero=True
            ),
            lifespan=_callback("lifespan", values["lifespan"], "settings"),
            on_job_start=_callback("on_job_start", values["on_job_start"], "ctx"),
            on_job_end=_callback("on_job_end", values["on_job_end"], "ctx", "outcome"),
            codec=codec,
            serializer=values["serializer"],
            max_payload=whole_number("max_payload", values["max_payload"], most=MOST_PAYLOAD),
            burst=_flag("burst", values["burst"]),
            source=source,
        )


_NAMES = tuple(name for name in vars(WorkerSettings) if not name.startswith("_"))
_HOOKS = ("lifespan", "on_job_start", "on_job_end")


def _value(source: Any, name: str) -> Any:
    """An attribute without binding: a plain function in a class body must not receive `self`."""
    default = inspect.getattr_static(WorkerSettings, name)
    value = inspect.getattr_static(source, name, default)
    if isinstance(value, staticmethod):
        return value.__func__
    # Properties, slots, class methods. Of what has a `__get__`, only functions can be called.
    if hasattr(type(value), "__get__") and not callable(value):
        return getattr(source, name)
    return value


def _check_source(source: Any) -> None:
    plain = type(source).__module__ == "builtins"
    if plain and not isinstance(source, type | types.ModuleType):
        raise ConfigError(f"Settings are a class, an instance of one or a module, not {source!r}.")
    for name in _own_names(source):
        hint = _slip(source, name)
        if hint:
            raise ConfigError(f"{_title(source)} has no setting {name!r}. {hint}")


def _slip(source: Any, name: str) -> str:
    """What to say of a name that is no setting, or "" if it may stay."""
    of_module = isinstance(source, types.ModuleType)
    # A module has names of many kinds, most of them functions; only what looks like a slip is one.
    of_function = of_module and callable(getattr(source, name))
    known, cutoff = (_HOOKS, 0.85) if of_function else (_NAMES, 0.75)
    close = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    if close:
        return f"Did you mean {close[0]!r}?"
    return "" if of_module else "A helper's name may start with an underscore."


def _own_names(source: Any) -> Iterator[str]:
    if isinstance(source, types.ModuleType):
        found = set(vars(source))
    else:
        kind = source if isinstance(source, type) else type(source)
        found = {n for k in kind.__mro__ if k not in (object, WorkerSettings) for n in vars(k)}
        found |= set(getattr(source, "__dict__", ())) if kind is not source else set()
    return (name for name in sorted(found) if name not in _NAMES and not name.startswith("_"))


def _title(source: Any) -> str:
    return getattr(source, "__name__", None) or type(source).__name__


def _functions(value: Any) -> dict[str, FunctionInfo]:
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise ConfigError(f"functions must be a list of functions, not {value!r}.")
    if not value:
        raise ConfigError("functions is empty: name at least one function that jobs may run.")
    return collect(value)


def _queue(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"queues must be a list of names, not {value!r}.")
    if len(value) != 1:
        raise ConfigError(f"queues names {len(value)} queues; this version serves one a worker.")
    return check_queue_name(value[0])


def _keep_dead(value: Any) -> tuple[int, float | None]:
    """How many dead jobs are kept, and for how many seconds (None: for ever)."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise ConfigError(
            "keep_dead must be how many jobs that ended badly are kept and how long, such as "
            f"(10_000, timedelta(days=7)), not {value!r}."
        )
    most, age = value
    kept_s = None if age is None else duration_s("keep_dead: the time", age, also=", or None")
    return whole_number("keep_dead: the count", most, most=1_000_000_000), kept_s


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {value!r}.")
    return value


def _callback(name: str, value: Any, *parameters: str) -> Any:
    """A hook that can be called with these parameters; found out now, not at the first job."""
    if value is None:
        return None
    if not callable(value):
        raise ConfigError(f"{name} must be a function ({', '.join(parameters)}), not {value!r}.")
    try:
        inspect.signature(value).bind(*parameters)
    except TypeError as error:
        raise ConfigError(
            f"{name} is called with ({', '.join(parameters)}), which does not fit: {error}."
        ) from None
    if name.startswith("on_") and not inspect.iscoroutinefunction(value):
        raise ConfigError(f"{name} must be an async function.")
    return value
