"""The successes of one turn are one MULTI ... EXEC, as often as it has to be sent."""

from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fastq._core import (
    DETACHED,
    ENDED,
    OVERDUE,
    RUNNING,
    Keep,
    Run,
    SettleBatch,
    SettleQueue,
)
from fastq.outcome import Envelope
from reference import Result
from rig import GROUP, RESULTS, STREAM, Rig, entry, function, id_of

pytestmark = pytest.mark.core

NOT_KEPT = 0
kept_times = st.sampled_from([NOT_KEPT, None, 1, 9, 10, 3_600_000]) | st.integers(1, 2**50)


def keep_of(kept: int | None) -> Keep | None:
    return None if kept == NOT_KEPT else Keep(kept)


def finished(*jobs: tuple[bytes, int | None, bytes]) -> SettleBatch:
    """The batch of one turn in which the jobs (id, how long kept, value) came to an end."""
    rig = Rig()
    rig.start(*[entry(job_id) for job_id, _, _ in jobs])
    for run, (_, kept, value) in zip(rig.started, jobs, strict=True):
        run.keep = keep_of(kept)
        assert rig.settles.complete(run, value)
    return rig.take()


def results_of(batch: SettleBatch) -> list[Result]:
    return [Result(key, ms, envelope) for key, (ms, envelope) in batch.envelopes().items()]


def ids_of(batch: SettleBatch) -> list[bytes]:
    return [run.id for run in batch.runs]


# What is packed


@given(st.dictionaries(st.binary(max_size=30), st.tuples(kept_times, st.binary()), min_size=1))
@settings(deadline=None)
def test_a_batch_is_packed_as_the_reference_does(
    jobs: dict[bytes, tuple[int | None, bytes]],
) -> None:
    batch = finished(*[(job_id, *job) for job_id, job in jobs.items()])
    kept = {RESULTS + job_id: job for job_id, job in jobs.items() if job[0] != NOT_KEPT}
    results = results_of(batch)
    assert ids_of(batch) == list(jobs)
    assert [result.key for result in results] == list(kept)
    assert [result.ms for result in results] == [ms for ms, _ in kept.values()]
    assert [Envelope.unpack(result.envelope).body for result in results] == [
        value for _, value in kept.values()
    ]
    assert batch.pack() == reference.settle(STREAM, GROUP, list(jobs), results)


@pytest.mark.parametrize("count", [1, 6, 7, 8, 96, 97, 98, 997, 998, 9_997])
def test_sizes_are_exact_where_the_number_of_ids_gets_longer(count: int) -> None:
    kept = [NOT_KEPT, None, 1_000]
    batch = finished(*[(id_of(n), kept[n % 3], b"x" * (n % 12)) for n in range(count)])
    assert len(batch) == count
    assert batch.pack() == reference.settle(STREAM, GROUP, ids_of(batch), results_of(batch))


@given(
    st.binary(),
    st.integers(1, 10**9),
    st.integers(0, 2**41),
    st.none() | st.integers(1, 10**9),
)
@settings(deadline=None)
def test_a_success_is_stored_as_outcome_does(
    value: bytes, tries: int, offset_ms: int, kept_ms: int | None
) -> None:
    rig = Rig()
    rig.settles.offset_ms = offset_ms
    rig.start(entry(1, b"plain", b"1", b"t", b"%d" % (tries - 1)))
    run = rig.run(1)
    run.keep = Keep(kept_ms)
    before_ms = int(monotonic() * 1000 + offset_ms)
    rig.settles.complete(run, value)
    after_ms = int(monotonic() * 1000 + offset_ms)
    [(key, ms, packed)] = results_of(rig.take())
    stored = Envelope.unpack(packed)
    started_ms = int(run.started_s * 1000 + offset_ms)
    assert stored == Envelope("complete", "", started_ms, stored.finished_ms, tries, value)
    assert before_ms <= stored.finished_ms <= after_ms
    assert packed == stored.pack()
    assert packed == reference.envelope(started_ms, stored.finished_ms, tries, value)
    assert (key, ms) == (RESULTS + id_of(1), kept_ms)


def test_the_offset_counts_at_the_end_of_the_run() -> None:
    rig = Rig(function("kept", Keep(5)))
    rig.start(entry(1, b"kept"))
    rig.settles.offset_ms = 1e12
    rig.settles.complete(rig.run(1), b"")
    [(_, _, packed)] = results_of(rig.take())
    stored = Envelope.unpack(packed)
    assert 1e12 <= stored.started_ms <= stored.finished_ms


# What counts as an end


def test_a_success_frees_its_slot_at_once() -> None:
    rig = Rig()
    rig.start(entry(1), entry(2))
    run = rig.run(1)
    assert rig.settles.complete(run, b"null")
    assert (run.state, run.task, rig.running.free) == (ENDED, None, 99)
    assert id_of(1) not in rig.running
    assert rig.running.ids() == [id_of(2)]


@pytest.mark.parametrize("state", [OVERDUE, DETACHED, ENDED])
def test_an_end_that_no_longer_counts_changes_nothing(state: int) -> None:
    rig = Rig()
    rig.start(entry(1))
    run = rig.run(1)
    run.state = state
    task = run.task
    assert not rig.settles.complete(run, b"null")
    assert (run.state, run.task, len(rig.running), rig.wakes) == (state, task, 1, 0)
    assert rig.settles.take() is None


def test_a_run_succeeds_once() -> None:
    rig = Rig()
    rig.start(entry(1))
    run = rig.run(1)
    assert rig.settles.complete(run, b"1")
    assert not rig.settles.complete(run, b"2")
    assert rig.take().runs == [run]
    assert not rig.settles.complete(run, b"3")
    assert rig.settles.take() is None


def test_a_success_that_is_not_kept_stores_nothing() -> None:
    batch = finished((id_of(1), NOT_KEPT, b"value"), (id_of(2), None, b"value"))
    assert list(batch.envelopes()) == [RESULTS + id_of(2)]
    assert batch.envelopes()[RESULTS + id_of(2)][0] is None
    assert len(batch) == 2


# Turns


def test_wake_is_called_once_a_turn() -> None:
    rig = Rig()
    rig.start(*map(entry, range(5)))
    for n in range(3):
        rig.settles.complete(rig.run(n), b"")
    rig.settles.touch()
    assert rig.wakes == 1
    assert ids_of(rig.take()) == [id_of(n) for n in range(3)]
    rig.settles.complete(rig.run(3), b"")
    assert rig.wakes == 2
    assert ids_of(rig.take()) == [id_of(3)]


def test_a_touch_wakes_without_a_batch() -> None:
    rig = Rig()
    rig.settles.touch()
    rig.settles.touch()
    assert rig.wakes == 1
    assert rig.settles.take() is None
    rig.settles.touch()
    assert rig.wakes == 2


def test_a_wake_may_take_at_once() -> None:
    taken: list[SettleBatch | None] = []
    rig = Rig()
    queue: SettleQueue = SettleQueue(
        rig.running,
        *(STREAM, GROUP, RESULTS),
        wake=lambda: taken.append(queue.take()),
        done=print,
        own=print,
    )
    rig.start(entry(1), entry(2))
    for run in list(rig.running):
        queue.complete(run, b"")
    assert [batch and ids_of(batch) for batch in taken] == [[id_of(1)], [id_of(2)]]


# Misuse


def test_a_run_that_no_entry_was_read_for_cannot_be_packed() -> None:
    rig = Rig()
    run = Run()
    assert run.state == RUNNING
    assert rig.settles.complete(run, b"")
    with pytest.raises(ValueError, match="no entry"):
        rig.take().pack()


def test_a_set_does_not_remove_the_run_of_another() -> None:
    mine, other = Rig(), Rig()
    for rig in (mine, other):
        rig.start(entry(1))
    mine.running.remove(other.run(1))
    assert mine.running.ids() == [id_of(1)]
