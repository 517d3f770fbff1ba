"""Calls everything in the core with everything: a script, so that a crash ends only its process.

What a call returns or raises is of no interest here; it prints `alive` if it gets to its end.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from fastq import _core

PLAIN: list[Any] = [None, 0, 1, -1, b"", b"id", "", [], [b"id", None], [[b"id", [b"f", b"f"]]], {}]
CLASSES = [_core.Wire, _core.XaddTemplate, _core.Waiter, _core.FutureWaiter, _core.CallbackWaiter]
CLASSES += [_core.Keep, _core.Function, _core.Run, _core.RunningSet]
CLASSES += [_core.SettleBatch, _core.SettleQueue]
# Some calls keep what they are given; without bound that would take all memory.
MOST_ARGUMENTS = 3


def callback(*args: Any, **kwargs: Any) -> Any:
    return ((), None)


def whole() -> list[Any]:
    """One of each class, made as it should be."""
    function = _core.Function("f", callback, callback, keep=_core.Keep(), execute=callback)
    running = _core.RunningSet(
        5, {b"f": function}, spawn=callback, refuse=callback, configure=callback
    )
    settles = _core.SettleQueue(
        running, b"s", b"g", b"r", wake=callback, done=callback, own=callback
    )
    running.start([[b"id", [b"f", b"f"]]])
    waiters = [_core.Waiter(), _core.FutureWaiter(running), _core.CallbackWaiter(callback)]
    template, batch = _core.XaddTemplate(b"k", b"f"), _core.SettleBatch(b"s", b"g", callback)
    return [function, running, settles, *waiters, template, batch, *running, _core.Wire()]


def bare() -> Iterator[Any]:
    """One of each class whose `__init__` was never called."""
    kinds: list[Any] = CLASSES
    for kind in kinds:
        with contextlib.suppress(TypeError):
            yield kind.__new__(kind)


def prod(thing: Any, pool: list[Any]) -> None:
    for name in dir(type(thing)):
        with contextlib.suppress(Exception):
            found = getattr(thing, name)
            if callable(found) and name not in ("__class__", "__getattribute__", "__sizeof__"):
                call(found, pool)
    for name, value in itertools.product(dir(type(thing)), pool):
        if not name.startswith("__"):
            with contextlib.suppress(Exception):
                setattr(thing, name, value)


def call(target: Any, pool: list[Any]) -> None:
    for count in range(MOST_ARGUMENTS + 1):
        for args in itertools.product(pool, repeat=count):
            try:
                target(*args)
            except Exception as error:
                if count and "argument" in str(error) and isinstance(error, TypeError):
                    break  # it takes fewer or none; others of this many would be refused alike


def build(kind: Any, pool: list[Any]) -> None:
    """Each argument in turn is something else than it should be."""
    good: dict[Any, list[Any]] = {
        _core.XaddTemplate: [b"k", b"f", (b"a", b"b")],
        _core.FutureWaiter: [callback, 2],
        _core.CallbackWaiter: [callback],
        _core.Wire: [callback],
        _core.Keep: [5],
        _core.Function: ["f", callback, callback],
        _core.SettleBatch: [b"s", b"g", callback],
        _core.SettleQueue: [whole()[1], b"s", b"g", b"r"],
        _core.RunningSet: [5, {}],
    }
    more: dict[Any, dict[str, Any]] = {
        _core.SettleQueue: {"wake": callback, "done": callback},
        _core.RunningSet: {"spawn": callback, "refuse": callback, "configure": callback},
        _core.Function: dict.fromkeys(("context", "execute"), callback)
        | {"keep": None, "is_async": True, "timeout_s": 1.0},
    }
    args, kwargs = good.get(kind, []), more.get(kind, {})
    for place, other in itertools.product(range(len(args)), pool):
        make(kind, [*args[:place], other, *args[place + 1 :]], kwargs, pool)
    for name, other in itertools.product(kwargs, pool):
        make(kind, args, kwargs | {name: other}, pool)


def make(kind: Any, args: list[Any], kwargs: dict[str, Any], pool: list[Any]) -> None:
    with contextlib.suppress(Exception):
        made = kind(*args, **kwargs)
        for name in dir(kind):
            if not name.startswith("__"):
                use(made, name, pool)


def use(thing: Any, name: str, pool: list[Any]) -> None:
    with contextlib.suppress(Exception):
        found = getattr(thing, name)
        for args in [(), *[(part,) for part in pool], *itertools.product(pool, repeat=2)]:
            with contextlib.suppress(Exception):
                found(*args)


def main() -> None:
    for things in (list(bare()), whole()):
        pool = [*PLAIN, *bare(), *whole()]
        for thing in things:
            prod(thing, pool)
    for kind in CLASSES:
        build(kind, [*PLAIN, callback, *bare(), *whole()])
    print("alive", file=sys.stdout)


if __name__ == "__main__":
    main()
