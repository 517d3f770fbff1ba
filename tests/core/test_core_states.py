"""RunningSet and SettleQueue against a model: every id is running, batched, sent or settled."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import reference
from fastq._core import DETACHED, ENDED, OVERDUE, RUNNING, ConnectionLost, Run, SettleBatch, Wire
from reference import Error, Result, Simple
from rig import GROUP, RESULTS, STREAM, Entry, Rig, entry, id_of

pytestmark = pytest.mark.core

MAX_JOBS = 8
# What an entry is like: the arguments of `entry` after the id, and whether it can run.
KINDS: dict[str, tuple[tuple[bytes, ...], bool]] = {
    "plain": ((b"plain", b"1"), True),
    "kept": ((b"kept", b"1"), True),
    "unknown": ((b"nobody", b"1"), False),
    "undecodable": ((b"plain", b"bad"), False),
    "tries": ((b"plain", b"1", b"t", b"many"), False),
}
numbers = st.integers(0, 10_000)


class States(RuleBasedStateMachine):
    """1. `running`: id -> run. 2. `batched`: ids of this turn. 3. `sent`, and then 4. `settled`."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig(max_jobs=MAX_JOBS)
        self.wire = Wire()
        self.running: dict[bytes, Run] = {}
        self.ended: list[Run] = []
        self.batched: list[bytes] = []
        self.kept: list[bytes] = []
        self.woken = 0
        self.sent: list[SettleBatch] = []
        self.lost: list[SettleBatch] = []
        self.packed: dict[SettleBatch, bytes] = {}
        self.settled: set[bytes] = set()
        self.next_id = 0

    def pick(self, number: int, state: int | None = None) -> Run | None:
        fit = [run for run in self.running.values() if state is None or run.state == state]
        return fit[number % len(fit)] if fit else None

    # Entries

    @rule(kinds=st.lists(st.sampled_from([*KINDS, "deleted", "again"]), max_size=4), number=numbers)
    def read(self, kinds: list[str], number: int) -> None:
        entries: list[Entry] = []
        deleted, refused, good = (list[bytes]() for _ in range(3))
        for kind in kinds:
            job_id, self.next_id = id_of(self.next_id), self.next_id + 1
            if kind == "deleted":
                entries.append([job_id, None])
                deleted.append(job_id)
            elif kind == "again":
                if run := self.pick(number):
                    entries.append(entry(run.id, b"kept", b"again"))
            else:
                fields, runs = KINDS[kind]
                entries.append(entry(job_id, *fields))
                (good if runs else refused).append(job_id)
        self.rig.refused.clear()
        assert self.rig.start(*entries) == deleted
        assert [job_id for job_id, _ in self.rig.refused] == refused
        self.running |= {job_id: self.rig.run(job_id) for job_id in good}

    # Ends

    @rule(number=numbers, value=st.binary(max_size=4))
    def succeed(self, number: int, value: bytes) -> None:
        if run := self.pick(number):
            counts = run.state == RUNNING
            assert self.rig.settles.complete(run, value) is counts
            if counts:
                self.end(run)
                self.batched.append(run.id)
                self.kept += [RESULTS + run.id] * (run.keep is not None)
                self.woken = 1

    @rule(number=numbers)
    def fail(self, number: int) -> None:
        if run := self.pick(number):
            self.rig.running.remove(run)
            self.end(run)
            self.settled.add(run.id)

    def end(self, run: Run) -> None:
        self.ended.append(self.running.pop(run.id))
        assert (run.state, run.task) == (ENDED, None)

    @rule(number=numbers, value=st.binary(max_size=4))
    def succeed_once_more(self, number: int, value: bytes) -> None:
        if self.ended:
            run = self.ended[number % len(self.ended)]
            assert not self.rig.settles.complete(run, value)
            self.rig.running.remove(run)

    @rule(number=numbers)
    def run_out_of_time(self, number: int) -> None:
        if run := self.pick(number, RUNNING):
            run.deadline_s = run.started_s
            assert run in self.rig.running.overdue(run.started_s)
            run.state = OVERDUE

    @rule(number=numbers)
    def detach(self, number: int) -> None:
        if run := self.pick(number):
            run.state = DETACHED

    # Settles

    @rule()
    def touch(self) -> None:
        self.rig.settles.touch()
        self.woken = 1

    @rule()
    def end_the_turn(self) -> None:
        batch = self.rig.settles.take()
        assert (batch is None) == (not self.batched)
        if batch is not None:
            assert [run.id for run in batch.runs] == self.batched
            assert list(batch.envelopes()) == self.kept
            self.send(batch)
        self.batched, self.kept, self.woken, self.rig.wakes = [], [], 0, 0

    def send(self, batch: SettleBatch) -> None:
        results = [Result(key, *result) for key, result in batch.envelopes().items()]
        ids = [run.id for run in batch.runs]
        packed = batch.pack()
        assert packed == reference.settle(STREAM, GROUP, ids, results)
        assert packed == self.packed.setdefault(batch, packed)
        self.wire.send(packed, batch)
        assert self.wire.take_output() == packed
        self.sent.append(batch)

    @precondition(lambda self: self.sent)
    @rule(refused=st.booleans(), cut=numbers)
    def answer(self, refused: bool, cut: int) -> None:
        batch = self.sent.pop(0)
        data = refusal(batch) if refused else success(batch)
        cut %= len(data)
        self.wire.feed(data[:cut])
        assert self.rig.answers == []
        self.wire.feed(data[cut:])
        ((told, reply),) = self.rig.answers
        assert told is batch
        assert (reference.parsed(reply) == Error("OOM")) is refused
        self.rig.answers.clear()
        if refused:
            self.lost.append(batch)
        else:
            self.settled |= {run.id for run in batch.runs}

    @rule(part=numbers)
    def lose_the_connection(self, part: int) -> None:
        if self.sent:
            data = success(self.sent[0])
            self.wire.feed(data[: part % len(data)])
        self.wire.close(OSError("gone"))
        assert [batch for batch, _ in self.rig.answers] == self.sent
        assert all(type(error) is ConnectionLost for _, error in self.rig.answers)
        self.rig.answers.clear()
        self.lost += self.sent
        self.sent = []
        self.wire = Wire()

    @rule()
    def send_again(self) -> None:
        lost, self.lost = self.lost, []
        for batch in lost:
            self.send(batch)

    # What holds at all times

    @invariant()
    def the_running_are_those_of_the_model(self) -> None:
        running = self.rig.running
        assert list(running) == list(self.running.values())
        assert (len(running), running.free) == (len(self.running), MAX_JOBS - len(self.running))
        assert running.ids() == [run.id for run in self.running.values() if run.state != DETACHED]
        assert all(job_id in running for job_id in self.running)
        assert not any(run.id in running for run in self.ended)

    @invariant()
    def wakes_are_one_a_turn(self) -> None:
        assert self.rig.wakes == self.woken

    @invariant()
    def every_id_is_in_one_place(self) -> None:
        outstanding = [run.id for batch in self.sent + self.lost for run in batch.runs]
        places: list[Any] = [*self.running, *self.batched, *outstanding, *self.settled]
        assert len(places) == len(set(places)) == len(self.running) + len(self.ended)

    @invariant()
    def the_wire_waits_for_what_was_sent(self) -> None:
        assert len(self.wire) == len(self.sent)
        assert self.rig.answers == []

    def teardown(self) -> None:
        self.wire.close(OSError("over"))


def success(batch: SettleBatch) -> bytes:
    sets, jobs = len(batch.envelopes()), len(batch)
    queued = [Simple(b"QUEUED")] * (sets + 2)
    done = [Simple(b"OK")] * sets + [jobs] * 2
    return b"".join(map(reference.render, [Simple(b"OK"), *queued, done]))


def refusal(batch: SettleBatch) -> bytes:
    refused = [Error("OOM")] * (len(batch.envelopes()) + 2)
    return b"".join(map(reference.render, [Simple(b"OK"), *refused, Error("EXECABORT")]))


TestStates = States.TestCase
TestStates.settings = settings(deadline=None, max_examples=100, stateful_step_count=40)


def test_cycles_through_callbacks_are_collected() -> None:
    """A worker's parts refer to each other all around; a debug build counts what is left."""
    gc.collect()
    tangle()
    assert gc.collect() > 0


def tangle() -> None:
    rig = Rig(spawn=lambda run: (rig, run))
    rig.start(entry(1), entry(2))
    rig.settles.complete(rig.run(1), b"")
    wire = Wire(lambda push: wire)
    batch = rig.take()
    wire.send(batch.pack(), batch)
