"""What cannot run is refused, and takes none of its neighbours with it."""

from math import inf
from typing import Any

import pytest

from fastq._core import Function, Keep, Run, RunningSet, UnknownFunction
from rig import Rig, entry, function, id_of

pytestmark = pytest.mark.core


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
    assert rig.begun == [id_of(2), id_of(7)]
    unknown = dict.fromkeys(map(id_of, (1, 4, 5, 6)), UnknownFunction)
    assert rig.errors == {**unknown, id_of(3): ValueError}
    assert rig.running.ids() == [id_of(2), id_of(7)]


def test_a_run_is_counted_after_those_that_the_entry_tells_of() -> None:
    tries: dict[bytes, int] = {}
    rig = Rig(refuse=lambda run, error: tries.update({run.id: run.tries}))
    rig.start(entry(1, b"plain", b"1", b"t", b"7"), entry(2, b"nobody", b"1", b"t", b"8"))
    assert rig.run(1).tries == 8
    assert tries == {id_of(2): 9}


@pytest.mark.parametrize(
    "tries", [b"", b"many", b"1.5", b"\xff", b"-1", b"99999999999", b"9" * 5_000]
)
def test_tries_that_are_no_number_refuse_their_entry_alone(tries: bytes) -> None:
    rig = Rig()
    rig.start(entry(1), entry(2, b"plain", b"1", b"t", tries), entry(3))
    assert rig.begun == [id_of(1), id_of(3)]
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
    assert rig.errors == {id_of(1): ValueError}
    assert rig.begun == [id_of(2)]


@pytest.mark.parametrize("result", [None, 5, ([], None), ((), []), ((),), ((), None, 1)])
def test_a_decoder_that_gives_something_else_refuses_its_entry(result: Any) -> None:
    odd = Function("odd", print, lambda payload: result)
    rig = Rig(odd, function("plain"))
    rig.start(entry(1, b"odd"), entry(2))
    assert rig.begun == [id_of(2)]
    assert list(rig.errors) == [id_of(1)]


def test_arguments_that_are_none_are_refused_when_called() -> None:
    odd = Function("odd", print, lambda payload: (None, None), execute=lambda run: run)  # type: ignore[arg-type, return-value]
    rig = Rig(odd)
    rig.start(entry(1, b"odd"))
    with pytest.raises(RuntimeError, match="nothing to call"):
        rig.run(1).call()


@pytest.mark.parametrize(
    "odd", [[], [b"1-1"], [b"1-1", [], 3], None, b"1-1", [b"1-1", b"f"], [[], []]]
)
def test_what_is_no_entry_is_an_error_and_breaks_nothing(odd: Any) -> None:
    rig = Rig()
    with pytest.raises((ValueError, TypeError)):
        rig.start(entry(1), odd, entry(2))
    rig.start(entry(3))
    assert rig.begun == [id_of(1), id_of(3)]
    assert len(rig.running) == 2


@pytest.mark.parametrize("other", [None, 5, print])
def test_a_table_of_functions_that_holds_something_else_refuses(other: Any) -> None:
    table: dict[bytes, Function] = {b"plain": other}
    rig = Rig()
    running = RunningSet(1, table, spawn=rig.spawn, refuse=rig.refuse, configure=lambda run: None)
    rig.running = running
    running.start([entry(1)])
    assert rig.errors == {id_of(1): TypeError}
    assert running.free == 1
