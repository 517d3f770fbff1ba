"""Starts that take long go on in the next turn; those that fail take no others with them."""

import time
from typing import Any

import pytest

from asking import Interrupt
from fastq._core import DETACHED, ENDED, Run
from rig import Rig, entry, function, id_of

pytestmark = pytest.mark.core


SLOW_S = 0.006
"""More than a turn's share of starts."""


def spend(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def test_a_run_may_end_while_it_is_spawned() -> None:
    rig = Rig(spawn=lambda run: rig.settles.complete(run, b"null"))
    rig.start(*map(entry, range(3)))
    assert [(run.state, run.task) for run in rig.started] == [(ENDED, None)] * 3
    assert (len(rig.running), rig.wakes) == (0, 1)
    assert rig.take().runs == rig.started


def test_starts_go_on_in_the_next_turn_when_they_take_long() -> None:
    rig = Rig(spawn=lambda run: spend(SLOW_S))
    entries = list(map(entry, range(3)))
    rig.running.start(entries)
    assert (rig.begun, len(rig.running), rig.running.waits) == ([id_of(0)], 3, True)
    assert [run.started_s > 0 for run in rig.running] == [True, False, False]
    assert rig.running.start_waiting()
    assert rig.begun == [id_of(0), id_of(1)]
    assert not rig.running.start_waiting()
    assert rig.begun == [id_of(0), id_of(1), id_of(2)]
    assert not rig.running.waits
    assert not rig.running.start_waiting()


def test_entries_read_later_wait_behind_those_that_wait_already() -> None:
    rig = Rig(spawn=lambda run: spend(SLOW_S))
    rig.running.start(list(map(entry, range(2))))
    rig.running.start([entry(2)])
    while rig.running.start_waiting():
        pass
    assert rig.begun == [id_of(0), id_of(1), id_of(2)]


@pytest.mark.parametrize("state", [DETACHED, ENDED])
def test_what_is_handed_back_while_it_waits_does_not_start(state: int) -> None:
    rig = Rig(spawn=lambda run: spend(SLOW_S))
    rig.running.start(list(map(entry, range(3))))
    if state == DETACHED:
        rig.run(1).state = DETACHED
    else:
        rig.running.remove(rig.run(1))
    while rig.running.start_waiting():
        pass
    assert rig.begun == [id_of(0), id_of(2)]
    assert rig.running.ids() == [id_of(0), id_of(2)]
    assert len(rig.running) == 2, "nothing runs that would free its slot"


@pytest.mark.parametrize("kind", [RuntimeError, Interrupt])
@pytest.mark.parametrize("place", ["spawn", "execute", "refuse"])
def test_a_start_that_raises_is_not_held_and_the_others_start_later(
    place: str, kind: type[BaseException]
) -> None:
    def raises(run: Run, error: Exception | None = None) -> Any:
        if run.id == id_of(1):
            raise kind("mine")
        return run

    job = function("plain", execute=raises if place == "execute" else lambda run: run)
    rig = Rig(
        job,
        spawn=raises if place == "spawn" else None,
        refuse=raises if place == "refuse" else None,
    )
    payload = b"bad" if place == "refuse" else b"1"
    with pytest.raises(kind, match="mine"):
        rig.running.start([entry(0), entry(1, b"plain", payload), entry(2), entry(3)])
    # Not held, so found in the own pending list or once its lease is over, as after a crash.
    assert rig.running.ids() == [id_of(0), id_of(2), id_of(3)]
    rig.start()
    assert [run.task is not None for run in rig.running] == [True] * 3
    assert {id_of(0), id_of(2), id_of(3)} <= set(rig.begun)


def test_a_run_that_fails_while_it_waits_for_a_turn_leaves_the_waiting_in_order() -> None:
    def raises_once(run: Run) -> None:
        spend(SLOW_S)
        if run.id == id_of(1):
            raise RuntimeError("mine")

    rig = Rig(spawn=raises_once)
    rig.running.start(list(map(entry, range(4))))
    with pytest.raises(RuntimeError):
        rig.running.start_waiting()
    while rig.running.start_waiting():
        pass
    assert rig.begun == [id_of(n) for n in range(4)]
    assert rig.running.ids() == [id_of(0), id_of(2), id_of(3)]
