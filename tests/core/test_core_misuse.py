"""Whatever the core is called with, and whatever state an object is in: it raises, or works."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import prodding
from fastq import _core
from fastq._core import (
    CallbackWaiter,
    Function,
    FutureWaiter,
    Keep,
    Run,
    RunningSet,
    SettleBatch,
    SettleQueue,
    Wire,
    XaddTemplate,
)
from rig import GROUP, RESULTS, STREAM, Rig, entry

pytestmark = pytest.mark.core

FINAL = [
    *(XaddTemplate, FutureWaiter, CallbackWaiter, Wire, Keep, Function),
    *(Run, RunningSet, SettleBatch, SettleQueue),
]


def test_no_call_with_anything_crashes_the_interpreter() -> None:
    script = Path(prodding.__file__)
    command = [sys.executable, "-X", "faulthandler", str(script)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr[-10_000:]


@pytest.mark.parametrize("kind", FINAL)
def test_leaves_cannot_be_subclassed(kind: type) -> None:
    with pytest.raises(TypeError, match="not an acceptable base type"):
        type("Sub", (kind,), {})


@pytest.mark.parametrize("kind", [XaddTemplate, RunningSet, SettleQueue])
def test_what_needs_its_arguments_cannot_be_made_without(kind: Any) -> None:
    with pytest.raises(TypeError):
        kind.__new__(kind)


def test_objects_before_init_raise_when_used() -> None:
    function: Any = Function.__new__(Function)
    assert (function.name, function.call, function.keep, function.timeout_s) == (None,) * 3 + (0.0,)
    batch = SettleBatch.__new__(SettleBatch)
    for use in (batch.pack, batch.envelopes, batch.__len__):
        with pytest.raises(TypeError):
            use()
    with pytest.raises(RuntimeError, match="nothing to call"):
        Run().call()


@pytest.mark.parametrize("waiter", [FutureWaiter, CallbackWaiter, SettleBatch])
def test_waiters_before_init_raise_when_told(waiter: Any) -> None:
    wire = Wire()
    for _ in range(2):
        wire.send(b"", waiter.__new__(waiter))
    wire.take_output()
    with pytest.raises((TypeError, AttributeError)):
        wire.feed(b":1\r\n")
    with pytest.raises((TypeError, AttributeError)):
        wire.close(OSError("gone"))
    assert len(wire) == 0


def test_a_function_before_init_refuses_its_entries_and_no_others() -> None:
    rig = Rig()
    blank = Function.__new__(Function)
    rig.start(entry(1))
    plain = rig.run(1).function
    running = RunningSet(
        5, {b"blank": blank, b"plain": plain}, spawn=rig.spawn, refuse=rig.refuse, configure=print
    )
    rig.running = running
    running.start([entry(2, b"blank"), entry(3)])
    assert [type(error) for _, error in rig.refused] == [TypeError]
    assert len(running) == 1


@pytest.mark.parametrize("place", range(4))
def test_none_is_refused_where_a_queue_needs_its_parts(place: int) -> None:
    parts: list[Any] = [Rig().running, STREAM, GROUP, RESULTS]
    parts[place] = None
    with pytest.raises(TypeError):
        SettleQueue(*parts, wake=print, done=print, own=print)


def test_none_is_refused_as_an_argument() -> None:
    rig, wire = Rig(), Wire()
    none: Any = None
    function: Any = Function
    calls: list[Callable[[], object]] = [
        lambda: XaddTemplate(b"k", b"f").pack(none),
        lambda: XaddTemplate(none, b"f"),
        lambda: XaddTemplate(b"k", none),
        lambda: FutureWaiter(none),
        lambda: CallbackWaiter(none),
        lambda: function(none, print, print),
        lambda: wire.send(none, CallbackWaiter(print)),
        lambda: wire.send(b"", none),
        lambda: wire.close(none),
        lambda: wire.feed(none),
        lambda: rig.running.start(none),
        lambda: rig.running.remove(none),
        lambda: rig.settles.complete(none, b""),
        lambda: rig.settles.complete(Run(), none),
        lambda: SettleBatch(none, b"g", print),
        lambda: SettleBatch(b"s", none, print),
        lambda: SettleBatch(b"s", b"g", none),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_a_run_put_into_a_batch_by_hand_is_refused() -> None:
    batch = SettleBatch(b"s", b"g", print)
    runs: list[Any] = batch.runs
    for odd in (None, Run(), 5):
        runs[:] = [odd]
        with pytest.raises((AttributeError, ValueError, TypeError)):
            batch.pack()


@pytest.mark.skipif(_core.DEBUG, reason="about release builds")
def test_a_release_build_counts_nothing() -> None:
    rig, wire = Rig(), Wire()
    rig.start(entry(1))
    wire.send(b"", CallbackWaiter(print))
    assert set(_core.live_objects().values()) == {0}


@pytest.mark.skipif(not _core.DEBUG, reason="about debug builds")
def test_a_debug_build_counts_what_lives() -> None:
    before = _core.live_objects()
    rig, wire = Rig(), Wire()
    rig.start(entry(1), entry(2))
    wire.send(b"", CallbackWaiter(print))
    grown = {kind: count - before[kind] for kind, count in _core.live_objects().items()}
    assert grown == {"runs": 2, "wires": 1, "waiters": 1}
