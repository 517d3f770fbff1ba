"""The functions that jobs run: `@job`, `call`, and what is known of a function."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from fastq.context import Context
from fastq.durations import UNSET, Duration, Unset, keep_s, limit_s
from fastq.errors import ConfigError, sentence
from fastq.options import EnqueueOptions, enqueue_options
from fastq.parameters import Arity, arity, takes_context
from fastq.retries import Backoff, RetryOn, backoff_of, exception_types, tries_of

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])
_ATTRIBUTE = "__fastq_job__"


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What `@job` attaches to a function; what is unset comes from the worker's settings."""

    name: str | None = None
    timeout_s: float | Unset | None = UNSET
    keep_result_s: float | Unset | None = UNSET
    max_tries: int | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    backoff: Backoff | None = None
    call: Callable[..., Any] | None = None


@overload
def job(fn: F, /) -> F: ...
@overload
def job(
    fn: F,
    /,
    *,
    name: str | None = None,
    timeout: Duration | Unset | None = UNSET,
    keep_result: Duration | Unset | None = UNSET,
    max_tries: int | None = None,
    retry_on: RetryOn | None = None,
    backoff: Backoff | None = None,
) -> F: ...
@overload
def job(
    *,
    name: str | None = None,
    timeout: Duration | Unset | None = UNSET,
    keep_result: Duration | Unset | None = UNSET,
    max_tries: int | None = None,
    retry_on: RetryOn | None = None,
    backoff: Backoff | None = None,
) -> Callable[[F], F]: ...
def job(
    fn: F | None = None,
    /,
    *,
    name: str | None = None,
    timeout: Duration | Unset | None = UNSET,
    keep_result: Duration | Unset | None = UNSET,
    max_tries: int | None = None,
    retry_on: RetryOn | None = None,
    backoff: Backoff | None = None,
) -> F | Callable[[F], F]:
    """Attaches options to a job function, which stays an ordinary function.

    `timeout`: seconds a run may take, None for no limit. `keep_result`: seconds, 0 for not at all,
    None for ever. `name`: what the job is called in the queue. `max_tries`: how often it runs at
    most, the first run counted. `retry_on`: the exception types after which it runs again;
    `TimeoutError` may be one. `backoff`: seconds to wait for that, by the number of runs so far.
    What is not given is the worker's to say. `job(fn, …)` leaves somebody else's `fn` as it is and
    returns a stand-in that carries the options.
    """
    if name is not None:
        check_function_name(name)
    options = JobOptions(
        name=name,
        timeout_s=timeout if isinstance(timeout, Unset) else limit_s("timeout", timeout),
        keep_result_s=(
            keep_result if isinstance(keep_result, Unset) else keep_s("keep_result", keep_result)
        ),
        max_tries=None if max_tries is None else tries_of(max_tries),
        retry_on=None if retry_on is None else exception_types(retry_on),
        backoff=None if backoff is None else backoff_of(backoff),
    )
    if fn is None:
        return lambda function: _attach(function, options)
    if not callable(fn):
        raise ConfigError(f"job() takes a function, not {fn!r}; options are given by name.")
    if options == JobOptions():
        return _attach(fn, options)
    return _stand_in(fn, options)


def check_function_name(name: object) -> None:
    """`ConfigError` unless a function may be called so in a queue."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise ConfigError(f"A function's name must be a non-empty string, not {name!r}.")


def _attach(fn: F, options: JobOptions) -> F:
    try:
        setattr(fn, _ATTRIBUTE, options)
    except AttributeError:
        raise ConfigError(f"{fn!r} takes no attributes; use job(fn, name=…) on it.") from None
    return fn


def _stand_in(fn: F, options: JobOptions) -> F:
    @functools.wraps(fn)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    # The worker calls the function itself, not the stand-in: it costs nothing a job.
    return _attach(cast(F, stand_in), replace(options, call=fn))


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """What is known of a function: its name, how it is called, its options."""

    name: str
    call: Callable[..., Any]
    takes_context: bool
    is_async: bool
    options: JobOptions
    shape: Arity


def describe(fn: Callable[..., Any]) -> FunctionInfo:
    """What is known of a function; found out once. `ConfigError` if it cannot be a job."""
    try:
        return _cached(fn)
    except TypeError:  # a callable object that cannot be hashed: found out each time
        return _describe(fn)


# Bounded: a producer may make functions as it goes.
@functools.lru_cache(maxsize=4096)
def _cached(fn: Callable[..., Any]) -> FunctionInfo:
    return _describe(fn)


def _describe(fn: Callable[..., Any]) -> FunctionInfo:
    options: JobOptions = getattr(fn, _ATTRIBUTE, None) or JobOptions()
    call = options.call or fn
    name = options.name or getattr(call, "__name__", None)
    if not callable(call):
        raise ConfigError(f"{fn!r} is neither a function nor the name of one.")
    if not name or name == "<lambda>":
        raise ConfigError(f"{fn!r} has no name of its own: use job(fn, name=…).")
    if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
        raise ConfigError(f"{name} is a generator: a job function returns its result.")
    with_context = takes_context(call)
    shape = arity(call, with_context)
    return FunctionInfo(name, call, with_context, _is_async(call), options, shape)


def _is_async(call: Callable[..., Any]) -> bool:
    if inspect.iscoroutinefunction(call):
        return True
    return not inspect.isroutine(call) and inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - the method itself is looked at
    )


class Call(Generic[R_co]):
    """A function with its arguments, for `enqueue_many` and `cron`."""

    __slots__ = ("_options", "args", "fn", "kwargs")

    def __init__(
        self,
        fn: Callable[..., Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: EnqueueOptions | None = None,
    ) -> None:
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self._options = options

    def options(
        self,
        *,
        job_id: str | None = None,
        defer_by: Duration | None = None,
        defer_until: datetime | None = None,
        expires: Duration | None = None,
        timeout: Duration | Unset | None = UNSET,
        max_tries: int | None = None,
        keep_result: Duration | Unset | None = UNSET,
    ) -> Call[R_co]:
        """The same call with these options, as `Client.options` has them; they go before those."""
        options = enqueue_options(
            job_id=job_id,
            defer_by=defer_by,
            defer_until=defer_until,
            expires=expires,
            timeout=timeout,
            max_tries=max_tries,
            keep_result=keep_result,
        )
        if self._options is not None:
            options = options.over(self._options)
        return Call(self.fn, self.args, self.kwargs, options)

    def __repr__(self) -> str:
        name = self.fn if isinstance(self.fn, str) else getattr(self.fn, "__name__", self.fn)
        return f"<call of {name}>"


@overload
def call(
    fn: Callable[Concatenate[Context, P], Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
) -> Call[R]: ...
@overload
def call(fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
@overload
def call(
    fn: Callable[Concatenate[Context, P], R], /, *args: P.args, **kwargs: P.kwargs
) -> Call[R]: ...
@overload
def call(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
@overload
def call(fn: str, /, *args: Any, **kwargs: Any) -> Call[Any]: ...
def call(fn: Any, /, *args: Any, **kwargs: Any) -> Call[Any]:
    """A function and its arguments as one object: `enqueue_many(call(add, i, i) for i in …)`.

    The arguments are checked when it is enqueued.
    """
    return Call(fn, args, kwargs)


def import_function(path: str) -> Callable[..., Any]:
    """The function that an import string names: `module:name` or `module.name`."""
    module, separator, name = path.partition(":")
    if not separator:
        module, _, name = path.rpartition(".")
    if not module or not name:
        raise ConfigError(f"functions: {path!r} cannot be imported: name it as module:name.")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the user's code
        raise ConfigError(f"functions: {path!r} cannot be imported: {sentence(error)}") from error
    return cast(Callable[..., Any], found)


def collect(functions: Iterable[Callable[..., Any] | str]) -> dict[str, FunctionInfo]:
    """The functions of a worker by their names; `ConfigError` if two share one."""
    found: dict[str, FunctionInfo] = {}
    for item in functions:
        fn = import_function(item) if isinstance(item, str) else item
        if not callable(fn):
            raise ConfigError(f"functions: {fn!r} is not a function or an import string.")
        info = describe(fn)
        other = found.setdefault(info.name, info)
        if other.call is not info.call:
            raise ConfigError(
                f"functions: two are called {info.name!r}: {_where(other.call)} and "
                f"{_where(info.call)}. Give one of them another name: @job(name=…)."
            )
        if other.options != info.options:
            raise ConfigError(
                f"functions: {info.name!r} is there twice, with different options. "
                "Give one of them another name: @job(name=…)."
            )
    return found


def _where(fn: Callable[..., Any]) -> str:
    return f"{getattr(fn, '__module__', '?')}.{getattr(fn, '__qualname__', fn)}"
