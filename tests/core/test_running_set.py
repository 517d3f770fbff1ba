"""Entries become runs, which hold their slot and their id until they end."""

from math import inf
from typing import Any

import pytest

from fastq._core import DETACHED, ENDED, OVERDUE, RUNNING, Function, Keep
from rig import Rig, decode, entry, function, id_of

pytestmark = pytest.mark.core


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
    assert rig.begun == [id_of(1), id_of(3)]
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
    assert rig.begun == [id_of(1), id_of(2), id_of(3)]
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
