"""A batch is told once a round what became of it, and can be sent again unchanged."""

from typing import Any

import pytest

import reference
from fastq._core import ConnectionLost, NotSent, ReplyError, SettleBatch, SettleQueue, Wire
from reference import Error, Simple
from rig import GROUP, RESULTS, STREAM, Rig, entry

pytestmark = pytest.mark.core


def replies_to(batch: SettleBatch, sets: int) -> bytes:
    """What a server in good health answers."""
    jobs = len(batch)
    queued = [Simple(b"QUEUED")] * (sets + 2)
    done = [*[Simple(b"OK")] * sets, jobs, jobs]
    return b"".join(map(reference.render, [Simple(b"OK"), *queued, done]))


class Sent:
    """A batch of two jobs, one of them kept, on a wire."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.start(entry(1), entry(2, b"kept"))
        for run in self.rig.running:
            self.rig.settles.complete(run, b"value")
        self.batch = self.rig.take()
        self.wire = self.send()

    def send(self) -> Wire:
        wire = Wire()
        wire.send(self.batch.pack(), self.batch)
        self.written = wire.take_output()
        return wire

    @property
    def answers(self) -> list[Any]:
        assert all(batch is self.batch for batch, _ in self.rig.answers)
        return [reference.parsed(answer) for _, answer in self.rig.answers]


OK, QUEUED = Simple(b"OK"), Simple(b"QUEUED")


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        ([OK, QUEUED, QUEUED, QUEUED, [OK, 2, 2]], [b"OK", 2, 2]),
        ([OK, QUEUED, QUEUED, QUEUED, [None, 1, 1]], [None, 1, 1]),
        # Inside EXEC's list an error is a value: what else the list says, did happen.
        ([OK, QUEUED, QUEUED, QUEUED, [OK, Error("WRONGTYPE"), 2]], [b"OK", Error("WRONGTYPE"), 2]),
        # The first error says why; EXECABORT only that there was one.
        ([OK, Error("OOM"), QUEUED, QUEUED, Error("EXECABORT")], Error("OOM")),
        ([OK, QUEUED, QUEUED, Error("NOPERM"), Error("EXECABORT")], Error("NOPERM")),
        ([OK, QUEUED, QUEUED, QUEUED, Error("READONLY")], Error("READONLY")),
        ([Error("LOADING")] * 5, Error("LOADING")),
        ([OK, QUEUED, QUEUED, QUEUED, None], None),
    ],
)
def test_a_batch_is_told_once_what_became_of_it(replies: list[Any], answer: Any) -> None:
    sent = Sent()
    for reply in replies:
        assert sent.answers == []
        sent.wire.feed(reference.render(reply))
    assert sent.answers == [answer]
    assert len(sent.wire) == 0
    sent.wire.close(OSError("later"))
    assert sent.answers == [answer]


@pytest.mark.parametrize("replies", range(5))
def test_a_lost_batch_is_told_so_once_and_sent_again_unchanged(replies: int) -> None:
    sent = Sent()
    first = sent.written
    sent.wire.feed(b"-ERR half of an answer\r\n" * replies)
    sent.wire.close(OSError("gone"))
    [(_, lost)] = sent.rig.answers
    assert type(lost) is ConnectionLost
    sent.rig.answers.clear()
    again = sent.send()
    assert sent.written == first == sent.batch.packed
    again.feed(replies_to(sent.batch, sets=1))
    assert sent.answers == [[b"OK", 2, 2]]


def test_a_batch_on_a_closed_wire_is_told_so_at_once() -> None:
    sent = Sent()
    sent.wire.close(OSError("gone"))
    sent.rig.answers.clear()
    sent.wire.send(sent.batch.pack(), sent.batch)
    assert [type(answer) for _, answer in sent.rig.answers] == [NotSent]


def test_an_error_does_not_outlive_its_round() -> None:
    sent = Sent()
    sent.wire.feed(b"-OOM\r\n" * 5)
    again = sent.send()
    again.feed(replies_to(sent.batch, sets=1))
    assert sent.answers == [Error("OOM"), [b"OK", 2, 2]]
    assert isinstance(sent.rig.answers[0][1], ReplyError)


def test_an_answer_that_cannot_be_handled_leaves_feed() -> None:
    def done(batch: SettleBatch, reply: Any) -> None:
        told.append(reply)
        raise ValueError("mine")

    told: list[Any] = []
    rig = Rig()
    queue = SettleQueue(rig.running, STREAM, GROUP, RESULTS, wake=int, done=done, own=print)
    rig.start(entry(1))
    queue.complete(rig.run(1), b"")
    batch, wire = queue.take(), Wire()
    assert batch is not None
    wire.send(batch.pack(), batch)
    wire.take_output()
    with pytest.raises(ValueError, match="mine"):
        wire.feed(replies_to(batch, sets=0))
    wire.close(OSError("gone"))
    assert told == [[1, 1]]
