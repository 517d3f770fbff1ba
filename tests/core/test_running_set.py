"""Entries become runs; one that cannot run is refused and takes none of its neighbours with it."""

import time
from math import inf
from typing import Any

import pytest

from fastq._core import DETACHED, ENDED, OVERDUE, RUNNING, Function, Keep, Run, UnknownFunction
from running import Rig, decode, entry, function, id_of

pytestmark = pytest.mark.core

SLOW_S = 0.006
"""More than a turn's share of starts."""


def spend(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


def begun(rig: Rig) -> list[bytes]:
    return [run.id for run in rig.started]


def refused(rig: Rig) -> dict[bytes, type[Exception]]:
    return {job_id: type(error) for job_id, error in rig.refused}


# Starting


def test_an_entry_becomes_a_run() -> None:
    rig = Rig(function("f", Keep(5), timeout_s=9.0))
    assert rig.start(entry(1, b"f", b"payload")) == []
    run = rig.run(1)
    assert (run.id, run.name, run.payload) == (id_of(1), b"f", b"payload")
    assert (run.args, run.kwargs, run.task) == ((b"payload",), None, ("task of", run.id))
    assert (run.state, run.tries, run.options, run.keep_field) == (RUNNING, 1, None, None)
    assert run.keep is run.function.keep
    assert run.deadline_s == run.started_s + run.limit_s == run.started_s + 9.0
    assert run.call() == (b"payload",)


def test_slots_are_counted_from_the_read_to_the_end() -> None:
    rig = Rig(max_jobs=3)
    assert (rig.running.free, rig.running.max_jobs) == (3, 3)
    rig.start(*map(entry, range(4)))
    assert (rig.running.free, len(rig.running)) == (-1, 4)
    assert id_of(3) in rig.running
    rig.running.remove(rig.run(3))
    assert (rig.running.free, len(rig.running)) == (0, 3)
    assert id_of(3) not in rig.running
    assert rig.running.ids() == [run.id for run in rig.running] == [id_of(n) for n in range(3)]


def test_keyword_arguments_and_context_reach_the_function() -> None:
    calls: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> str:
        calls.append((args, kwargs))
        return "value"

    both = Function(
        "f",
        call,
        lambda payload: ((1,), {"a": 2}),
        context=lambda run: ("context of", run.id),
        execute=lambda run: run,  # type: ignore[arg-type, return-value]
    )
    rig = Rig(both)
    rig.start(entry(1, b"f"))
    run = rig.run(1)
    assert run.call() == "value"
    assert run.context == ("context of", id_of(1))
    assert calls == [((run.context, 1), {"a": 2})]


def test_the_mean_payload_follows_the_payloads() -> None:
    rig = Rig(max_jobs=1_000)
    rig.start(*[entry(n, b"plain", b"x" * 1_000) for n in range(640)])
    assert 990 < rig.running.mean_payload <= 1_000


def test_the_payload_may_be_missing_or_empty() -> None:
    rig = Rig()
    rig.start([id_of(1), [b"f", b"plain"]], entry(2, b"plain", b""))
    assert [(run.payload, run.args) for run in rig.started] == [(None, (None,)), (b"", (b"",))]


def test_deleted_entries_are_told_apart() -> None:
    rig = Rig()
    assert rig.start(entry(1), [id_of(2), None], entry(3), [id_of(4), None]) == [id_of(2), id_of(4)]
    assert begun(rig) == [id_of(1), id_of(3)]
    assert len(rig.running) == 2


def test_fields_that_are_not_known_are_carried_along() -> None:
    rig = Rig()
    rig.start([id_of(1), [b"new", b"?", b"d", b"1", b"", b"", b"f", b"plain", b"ff", b"other"]])
    rig.start(entry(2))
    first, second = rig.started
    assert (first.name, first.payload) == (b"plain", b"1")
    assert first.more == [b"new", b"?", b"", b"", b"ff", b"other"]
    assert second.more is None


@pytest.mark.parametrize("fields", [[b"f", b"plain", b"d"], [b"f", b"plain", b"odd"]])
def test_a_field_without_a_value_is_passed_over(fields: list[bytes]) -> None:
    rig = Rig()
    rig.start([id_of(1), fields], entry(2))
    assert [run.payload for run in rig.started] == [None, b"1"]


def test_an_id_read_twice_while_it_runs_is_one_run() -> None:
    rig = Rig()
    rig.start(entry(1), entry(1, b"plain", b"again"), entry(2))
    rig.start(entry(2), entry(3))
    assert begun(rig) == [id_of(1), id_of(2), id_of(3)]
    assert rig.run(1).payload == b"1"
    rig.running.remove(rig.run(1))
    rig.start(entry(1, b"plain", b"again"))
    assert rig.run(1).payload == b"again"


def test_a_late_remove_does_not_take_the_slot_of_a_newer_run() -> None:
    rig = Rig()
    rig.start(entry(1))
    old = rig.run(1)
    rig.running.remove(old)
    rig.start(entry(1))
    rig.running.remove(old)
    assert rig.run(1).state == RUNNING
    assert rig.running.free == 99


# Refusals


def test_what_cannot_run_is_refused_and_its_neighbours_run() -> None:
    rig = Rig()
    rig.start(
        entry(1, b"nobody"),
        entry(2),
        entry(3, b"plain", b"bad"),
        [id_of(4), [b"d", b"1"]],
        [id_of(5), []],
        [id_of(6), [b"f"]],
        entry(7),
    )
    assert begun(rig) == [id_of(2), id_of(7)]
    unknown = dict.fromkeys(map(id_of, (1, 4, 5, 6)), UnknownFunction)
    assert refused(rig) == {**unknown, id_of(3): ValueError}
    assert rig.running.ids() == [id_of(2), id_of(7)]


def test_tries_are_read_from_the_entry() -> None:
    tries: dict[bytes, int] = {}
    rig = Rig(refuse=lambda run, error: tries.update({run.id: run.tries}))
    rig.start(entry(1, b"plain", b"1", b"t", b"7"), entry(2, b"nobody", b"1", b"t", b"8"))
    assert rig.run(1).tries == 7
    assert tries == {id_of(2): 8}


@pytest.mark.parametrize("tries", [b"", b"many", b"1.5", b"\xff", b"-1", b"99999999999", b"9" * 5_000])
def test_tries_that_are_no_number_refuse_their_entry_alone(tries: bytes) -> None:
    rig = Rig()
    rig.start(entry(1), entry(2, b"plain", b"1", b"t", tries), entry(3))
    assert begun(rig) == [id_of(1), id_of(3)]
    [(refused_id, error)] = rig.refused
    assert refused_id == id_of(2)
    assert isinstance(error, ValueError | OverflowError)


def test_a_refused_run_knows_how_its_outcome_is_kept() -> None:
    keeps: list[Keep | None] = []
    rig = Rig(function("f", Keep(5)), refuse=lambda run, error: keeps.append(run.keep))
    rig.start(entry(1, b"f", b"bad"), entry(2, b"f", b"1", b"t", b"many"), entry(3, b"nobody"))
    assert [keep and keep.ms for keep in keeps] == [5, 5, None]


def test_options_of_its_own_are_for_configure() -> None:
    def configure(run: Run) -> None:
        asked.append((run.id, run.options, run.keep_field))
        run.keep, run.limit_s = None, 3.0

    asked: list[Any] = []
    rig = Rig(function("plain", Keep(5)), configure=configure)
    options, kept = (b"o", b"{}"), (b"k", b"7")
    rig.start(entry(1), entry(2, b"plain", b"1", *options), entry(3, b"plain", b"1", *kept))
    assert asked == [(id_of(2), b"{}", None), (id_of(3), None, b"7")]
    assert [run.keep is None for run in rig.started] == [False, True, True]
    assert [run.deadline_s - run.started_s for run in rig.started] == [inf, 3.0, 3.0]


def test_options_that_are_wrong_refuse_their_entry() -> None:
    def configure(run: Run) -> None:
        raise ValueError("no such option")

    rig = Rig(configure=configure)
    rig.start(entry(1, b"plain", b"1", b"o", b"{"), entry(2))
    assert refused(rig) == {id_of(1): ValueError}
    assert begun(rig) == [id_of(2)]


@pytest.mark.parametrize("result", [None, 5, ([], None), ((), []), ((),), ((), None, 1)])
def test_a_decoder_that_gives_something_else_refuses_its_entry(result: Any) -> None:
    odd = Function("odd", print, lambda payload: result)
    rig = Rig(odd, function("plain"))
    rig.start(entry(1, b"odd"), entry(2))
    assert begun(rig) == [id_of(2)]
    assert list(refused(rig)) == [id_of(1)]


def test_arguments_that_are_none_are_refused_when_called() -> None:
    odd = Function("odd", print, lambda payload: (None, None), execute=lambda run: run)  # type: ignore[arg-type, return-value]
    rig = Rig(odd)
    rig.start(entry(1, b"odd"))
    with pytest.raises(RuntimeError, match="nothing to call"):
        rig.run(1).call()


@pytest.mark.parametrize("odd", [[], [b"1-1"], [b"1-1", [], 3], None, b"1-1", [b"1-1", b"f"], [[], []]])
def test_what_is_no_entry_is_an_error_and_breaks_nothing(odd: Any) -> None:
    rig = Rig()
    with pytest.raises((ValueError, TypeError)):
        rig.start(entry(1), odd, entry(2))
    rig.start(entry(3))
    assert begun(rig) == [id_of(1), id_of(3)]
    assert len(rig.running) == 2


@pytest.mark.parametrize("other", [None, 5, print])
def test_a_table_of_functions_that_holds_something_else_refuses(other: Any) -> None:
    table: dict[bytes, Function] = {b"plain": other}
    rig = Rig()
    running = type(rig.running)(
        1, table, spawn=rig.spawn, refuse=rig.refuse, configure=lambda run: None
    )
    rig.running = running
    running.start([entry(1)])
    assert refused(rig) == {id_of(1): TypeError}
    assert running.free == 1


# A start that fails or takes long


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
    assert (begun(rig), len(rig.running), rig.running.waits) == ([id_of(0)], 3, True)
    assert [run.started_s > 0 for run in rig.running] == [True, False, False]
    assert rig.running.start_waiting()
    assert begun(rig) == [id_of(0), id_of(1)]
    assert not rig.running.start_waiting()
    assert begun(rig) == [id_of(0), id_of(1), id_of(2)]
    assert not rig.running.waits
    assert not rig.running.start_waiting()


def test_entries_read_later_wait_behind_those_that_wait_already() -> None:
    rig = Rig(spawn=lambda run: spend(SLOW_S))
    rig.running.start(list(map(entry, range(2))))
    rig.running.start([entry(2)])
    while rig.running.start_waiting():
        pass
    assert begun(rig) == [id_of(0), id_of(1), id_of(2)]


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
    assert begun(rig) == [id_of(0), id_of(2)]
    assert rig.running.ids() == [id_of(0), id_of(2)]
    assert len(rig.running) == 2, "nothing runs that would free its slot"


class Interrupt(BaseException):
    """Not an Exception, as KeyboardInterrupt is not."""


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
    assert {id_of(0), id_of(2), id_of(3)} <= set(begun(rig))


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
    assert begun(rig) == [id_of(n) for n in range(4)]
    assert rig.running.ids() == [id_of(0), id_of(2), id_of(3)]


# Time limits and states


def test_runs_past_their_deadline_are_found_as_often_as_asked() -> None:
    rig = Rig(function("f", timeout_s=5.0), function("plain"))
    rig.start(entry(1, b"f"), entry(2), entry(3, b"f"))
    first, third = rig.run(1), rig.run(3)
    third.deadline_s = first.deadline_s + 1
    overdue = rig.running.overdue
    assert overdue(first.started_s) == []
    assert overdue(first.deadline_s) == overdue(first.deadline_s) == [first]
    assert overdue(third.deadline_s) == [first, third]
    first.deadline_s = inf
    assert overdue(third.deadline_s) == [third]
    rig.running.remove(third)
    assert overdue(inf) == [first, rig.run(2)]


def test_held_ids_are_those_not_settled_or_handed_back() -> None:
    rig = Rig()
    rig.start(*map(entry, range(3)))
    rig.run(0).state = OVERDUE
    rig.run(1).state = DETACHED
    assert rig.running.ids() == [id_of(0), id_of(2)]
    assert (len(rig.running), rig.running.free) == (3, 97)


def test_the_set_may_change_while_it_is_gone_through() -> None:
    rig = Rig()
    rig.start(*map(entry, range(5)))
    for run in rig.running:
        rig.running.remove(run)
    assert len(rig.running) == 0
    assert all(run.state == ENDED and run.task is None for run in rig.started)


def test_a_function_says_how_it_is_run() -> None:
    keep = Keep(5)
    made = Function("f", print, decode, timeout_s=2.5, keep=keep, is_async=False)
    assert (made.name, made.call, made.decode) == ("f", print, decode)
    assert (made.timeout_s, made.keep, made.is_async, made.context) == (2.5, keep, False, None)
