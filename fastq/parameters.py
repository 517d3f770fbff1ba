"""What a function takes: which calls fit it, what its annotations mean, whether it wants `ctx`.

Nothing here looks at values; `decoders` does.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, NamedTuple

from fastq.errors import ConfigError

Function = Callable[..., Any]

EMPTY = inspect.Parameter.empty
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BARE_CTX = "ctx"


class Arity(NamedTuple):
    """How many arguments a function takes, and which by name; without the context's parameter.

    `low` and `high` bound the number of arguments of a call without keywords.
    """

    name: str
    signature: str
    positional: tuple[str, ...]
    required: int
    variadic: bool
    positional_only: frozenset[str]
    keywords: frozenset[str]
    required_keywords: frozenset[str]
    any_keyword: bool
    low: int
    high: int


def arity(fn: Function, skip_first: bool) -> Arity:
    """What `fn` takes; `skip_first` leaves out the context. Raises TypeError for no callable."""
    try:
        return _cached_arity(fn, skip_first)
    except TypeError:  # a callable object that cannot be hashed, or no callable at all
        return _arity(fn, skip_first)


def misfit(shape: Arity, count: int, keywords: Collection[str]) -> str | None:
    """Why a call with `count` positional arguments and these keywords does not fit, or None."""
    if not keywords and shape.low <= count <= shape.high:
        return None
    if count > len(shape.positional) and not shape.variadic:
        most = len(shape.positional)
        given = f"{count} {'was' if count == 1 else 'were'} given"
        return f"{shape.name}() takes {most} positional argument{_s(most)} but {given}"
    for name in keywords:
        if name not in shape.keywords and not shape.any_keyword:
            return f"{shape.name}() got an unexpected keyword argument {name!r}"
        if name in shape.positional[:count] and name not in shape.positional_only:
            return f"{shape.name}() got multiple values for argument {name!r}"
    return _missing(shape, count, keywords)


def takes_context(fn: Function) -> bool:
    """Whether the first parameter of `fn` is to get the `Context`.

    It is if annotated `Context` (also as a string that only a type checker can resolve), or if it
    is a bare `ctx`. Raises ConfigError for a `ctx` annotated as something else.
    """
    first = next(iter(_signature(fn).parameters.values()), None)
    if first is None or first.kind not in _BY_POSITION:
        return False
    if first.annotation is EMPTY:
        return first.name == _BARE_CTX
    if _is_context(_resolve(fn, first.annotation)):
        return True
    if first.name == _BARE_CTX:
        raise ConfigError(
            f"{name_of(fn)}(): its parameter ctx is annotated {_shown(first.annotation)}; annotate"
            " it fastq.Context or not at all, or give it another name if it is an argument"
        )
    return False


def parameters(fn: Function, skip_first: bool) -> list[inspect.Parameter]:
    """The parameters that a job's arguments go to, with their annotations resolved one by one.

    An annotation that cannot be resolved stays what it is: a string or a `ForwardRef`.
    """
    found = list(_signature(fn).parameters.values())
    if skip_first and found and found[0].kind in _BY_POSITION:
        del found[0]
    return [each.replace(annotation=_resolve(fn, each.annotation)) for each in found]


def return_annotation(fn: Function) -> Any:
    """The resolved return annotation, or `EMPTY`."""
    return _resolve(fn, _signature(fn).return_annotation)


def name_of(fn: Function) -> str:
    """How messages call `fn`."""
    return getattr(fn, "__name__", None) or type(fn).__name__


@functools.lru_cache(maxsize=4096)
def _cached_arity(fn: Function, skip_first: bool) -> Arity:
    return _arity(fn, skip_first)


def _arity(fn: Function, skip_first: bool) -> Arity:
    found = parameters(fn, skip_first)
    positional = [each for each in found if each.kind in _BY_POSITION]
    required = sum(each.default is EMPTY for each in positional)
    variadic = any(each.kind is each.VAR_POSITIONAL for each in found)
    needed = {e.name for e in found if e.kind is e.KEYWORD_ONLY and e.default is EMPTY}
    return Arity(
        name=name_of(fn),
        signature=_shown_signature(fn, found),
        positional=tuple(each.name for each in positional),
        required=required,
        variadic=variadic,
        positional_only=frozenset(e.name for e in positional if e.kind is e.POSITIONAL_ONLY),
        keywords=frozenset(each.name for each in found if each.kind in _BY_NAME),
        required_keywords=frozenset(needed),
        any_keyword=any(each.kind is each.VAR_KEYWORD for each in found),
        low=sys.maxsize if needed else required,
        high=sys.maxsize if variadic else len(positional),
    )


def _missing(shape: Arity, count: int, keywords: Collection[str]) -> str | None:
    needed = shape.positional[count : shape.required]
    if shape.required_keywords:
        needed += tuple(sorted(shape.required_keywords))
    absent = [name for name in needed if name not in keywords or name in shape.positional_only]
    if not absent:
        return None
    names = " and ".join(map(repr, absent))
    return f"{shape.name}() missing {len(absent)} required argument{_s(len(absent))}: {names}"


def _signature(fn: Function) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):  # there annotations are evaluated when asked for
            import annotationlib

            return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(fn)
    except ValueError:  # some functions written in C do not tell
        return _ANYTHING


def _anything(*args: Any, **kwargs: Any) -> Any: ...


_ANYTHING = inspect.Signature(
    [each.replace(annotation=EMPTY) for each in inspect.signature(_anything).parameters.values()]
)


def _resolve(fn: Function, annotation: Any) -> Any:
    if annotation is EMPTY:
        return EMPTY
    names, cells = _scope(fn)
    holder = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, names, cells, include_extras=True)["it"]
    except Exception:  # TYPE_CHECKING names, syntax errors, whatever evaluating it raises
        return annotation


def _scope(fn: Function) -> tuple[dict[str, Any], dict[str, Any]]:
    """The globals of the function behind `fn`, and what it closes over."""
    inner = _behind(fn)
    return getattr(inner, "__globals__", {}), _cells(inner)


def _behind(fn: Any) -> Any:
    """The plain function behind wrappers, partials, methods, classes and callable objects."""
    fn = inspect.unwrap(fn)
    if isinstance(fn, functools.partial):
        return _behind(fn.func)
    if hasattr(fn, "__func__"):
        return _behind(fn.__func__)
    if hasattr(fn, "__globals__"):
        return fn
    inner = getattr(fn, "__init__" if isinstance(fn, type) else "__call__", None)
    # Functions written in C have no globals, and a `__call__` that has a `__call__` for ever.
    return getattr(inner, "__func__", inner)


def _cells(fn: Any) -> dict[str, Any]:
    found = {}
    names = getattr(getattr(fn, "__code__", None), "co_freevars", ())
    for name, cell in zip(names, getattr(fn, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, type):  # by name, since `context` may one day need this module
        return (annotation.__module__.split(".")[0], annotation.__name__) == ("fastq", "Context")
    text = getattr(annotation, "__forward_arg__", annotation)
    return isinstance(text, str) and text.strip("\"' ").rpartition(".")[2] == "Context"


def _shown(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _shown_signature(fn: Function, found: list[inspect.Parameter]) -> str:
    try:
        return f"{name_of(fn)}{inspect.Signature(found)}"
    except Exception:  # the repr of a default is the user's code
        return name_of(fn)


def _s(count: int) -> str:
    return "" if count == 1 else "s"
