"""The moves of a queue, made by fastq's own code on a real server, one at a time.

What is sent is what producers, workers and leaders send: `Producer` packs the enqueueings,
`Executor`, `Endings` and `Settler` the ends, `Promoter`, `Crontab` and `Surplus` theirs. Jobs do
not run: they end as a history says.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fastq import Reject, Retry
from fastq._core import Run, pack
from fastq.keys import GROUP
from fastq.producer import Recorded
from fastq.surplus import Surplus
from hands import Entry, Hand, field, finished, id_of, tries_of
from model import QUEUED, RELEASED, RUNNING, Ask, Outcome
from scene import HOUR_S, KEEP_S, KINDS, MAX_TRIES, Scene, is_near, same, times_of, work

# These, and their sums, are further from all that is waited for than a history takes.
STEPS_MS = (35_000, 35_000, 70 * 60_000)
_DECADES_MS = 20 * 365 * 24 * HOUR_S * 1000
_NAMES = ("a", "b")
_VALUE, _FULL = "", "full"
# How a run ends: with a value (on a full server), with an error, or asking for another one.
_ENDS = (_VALUE, _FULL, "fails", "rejects", "at once", "later")


class Moves(Scene):
    """Each public method of two numbers is a move; the numbers choose among what is there. A move
    that cannot be made becomes one that can.
    """

    # Into the queue

    def enqueue(self, a: int, b: int) -> None:
        options = dict(KINDS[a % len(KINDS)])
        if "job_id" in options:
            options["job_id"] = _NAMES[b % len(_NAMES)]
        self._enqueue(options)

    def enqueue_itself(self, a: int, b: int) -> None:
        """A run enqueues its own job anew; a zombie may try it, too."""
        own = [(hand, entry) for hand, entry in self.held() if id_of(entry).isalnum()]
        if not own:
            self.enqueue(a, b)
            return
        hand, entry = own[b % len(own)]
        run = hand.run(entry)
        options = KINDS[a % len(KINDS)] | {"job_id": id_of(entry)}
        contextvars.copy_context().run(self._enqueue, options, hand, run)
        hand.running.remove(run)

    def _enqueue(
        self, options: dict[str, Any], hand: Hand | None = None, run: Run | None = None
    ) -> None:
        self.lives += 1
        if hand is not None and run is not None:
            hand.executor._enter(run)
        packed = self.client.options(**options)._pack(work, (self.lives,), {})
        ask = Ask("", self.lives, **times_of(options))
        if isinstance(packed, Recorded):
            who = (run.entry, hand.name) if hand is not None and run is not None else (b"", "")
            self._enqueue_recorded(packed, ask, *who)
        else:
            (entry,) = self.line.ask(packed)
            self.model.add_plain(replace(ask, job_id=entry.decode()))

    def _enqueue_recorded(self, packed: Recorded, ask: Ask, entry: bytes, consumer: str) -> None:
        nonce: Any = packed._args[1]
        ask = replace(ask, job_id=packed.job_id, nonce=nonce, entry=entry, consumer=consumer)

        def tell(replies: list[Any]) -> None:
            same(replies, [self.model.enqueue(ask)])

        with self.saying(tell):
            self.line.ask(packed.pack())

    def tick(self, a: int, b: int) -> None:
        """A tick of a cron entry: the next, one that has been, or one that has not come."""
        early = b % 4 == 0
        self.ticks += b % 4 > 1
        self.lives += 1
        tick_ms = 10**15 if early else 1_000_000 * self.ticks
        how = ("unique", "unique", "unique", "fire", "skip")[a % 5]
        unique = how != "fire"
        entry = replace(self.cron, unique=unique, payload=b"[%d]" % self.lives)
        ask = Ask("cron:tick" if unique else f"cron:tick:{tick_ms}", self.lives, KEEP_S * 1000)

        def tell(replies: list[Any]) -> None:
            same(replies[0][0], -2 if early else self.model.tick(ask, tick_ms, how))

        with self.saying(tell):
            finished(self.crontab._fire(self.line, entry, tick_ms, how))  # type: ignore[arg-type]

    def promote(self, a: int, b: int) -> None:
        with self.saying(self._promoted):
            finished(self.promoter.promote(self.line))  # type: ignore[arg-type]

    def come_due(self, a: int, b: int) -> None:
        """A while later, with what has become due."""
        self.move_time(STEPS_MS[-1])
        self.promote(a, b)

    def _promoted(self, replies: list[Any]) -> None:
        (moved, next_ms, now_ms), (due, due_ms) = replies[0], self.model.promote()
        same(moved, due)
        same(next_ms == -1, due_ms is None)
        assert due_ms is None or is_near(next_ms - now_ms, due_ms - self.model.now_ms)

    # To consumers

    def read(self, a: int, b: int) -> None:
        hand, count = self.hands[a % 2], 1 + b % 3
        who = ("XREADGROUP", "GROUP", GROUP, hand.name, "COUNT", count)
        (reply,) = self.line.ask(pack(*who, "STREAMS", self.keys.stream, ">"))
        entries = reply[0][1] if reply else []
        expected = self.model.read(hand.name, count)
        same([entry[0] for entry in entries], [job.entry for job in expected])
        self._take(hand, entries)
        if not entries:
            self.enqueue(a, b)

    def claim(self, a: int, b: int) -> None:
        """An entry is taken from its consumer: another one has it now, or nobody."""
        running = self.model.living(RUNNING)
        if not running:
            self.read(a, b)
            return
        job = running[b % len(running)]
        others = [name for name in ("A", "B", RELEASED) if name != job.consumer]
        self._claim(job.entry or b"", others[a % len(others)])

    def _claim(self, entry: bytes, consumer: str) -> None:
        (entries,) = self.line.ask(pack("XCLAIM", self.keys.stream, GROUP, consumer, 0, entry))
        same([found[0] for found in entries], [entry])
        self.model.claim(entry, consumer)
        for hand in self.hands:
            if hand.name == consumer:
                self._take(hand, entries)

    def usurp(self, a: int, b: int) -> None:
        """A job is taken from a worker, which does not notice, and often ended by the other one."""
        one, other = self.hands if a % 2 else reversed(self.hands)
        mine = [job for job in self.model.living(RUNNING) if job.entry in one.held]
        if not mine:
            self.read(a + 1, b)
            return
        entry = mine[b % len(mine)].entry or b""
        if mine[b % len(mine)].consumer != other.name:
            self._claim(entry, other.name)
        if entry in other.held and b % 4:
            self._end(other, other.held[entry], _ENDS[a // 2 % len(_ENDS)])

    def hand_back(self, a: int, b: int) -> None:
        """A worker stops: what it holds goes to whoever takes it."""
        hand = self.hands[a % 2]
        if not hand.held:
            self.claim(a, b)
            return
        surplus, entries = Surplus(self.keys, hand.name), list(hand.held)
        hand.held.clear()
        surplus.add(entries)

        def tell(replies: list[Any]) -> None:
            same(replies, [self.model.hand_back(entries, hand.name)])

        with self.saying(tell):
            finished(surplus.hand_back(self.line))  # type: ignore[arg-type]

    def _take(self, hand: Hand, entries: list[Entry]) -> None:
        """Of what has expired, the end is settled at once. What it holds already goes on there."""
        entries = [entry for entry in entries if entry[0] not in hand.held]
        for entry in entries:
            self.catch_up(entry)
        late = [entry for entry in entries if self.model.has_expired(entry[0])]

        def tell(replies: list[Any]) -> None:
            same(replies, [self._expire(hand, entry) for entry in late])

        with self.settling(hand, tell):
            hand.take(entries)

    def _expire(self, hand: Hand, entry: Entry) -> int:
        outcome = Outcome("expired", "expired", tries_of(entry) - 1, "")
        return self.model.bury(entry[0], hand.name, outcome)

    # Ends

    def end(self, a: int, b: int) -> None:
        """One run ends; every other time that of a zombie, if there is one."""
        held, how = (b % 2 and self.zombies()) or self.held(), _ENDS[a % len(_ENDS)]
        if held:
            self._end(*held[b // 2 % len(held)], how)
        else:
            self.read(a, b)

    def _end(self, hand: Hand, entry: Entry, how: str) -> None:
        if how in (_VALUE, _FULL):
            self._succeed(hand, [entry], full=how == _FULL)
        else:
            self._fail(hand, entry, how)

    def end_all(self, a: int, b: int) -> None:
        """All that a worker holds ends well, in one loop turn; the server may be full."""
        hand = self.hands[a % 2]
        if hand.held:
            self._succeed(hand, list(hand.held.values()), full=b % 2 == 1)
        else:
            self.read(a, b)

    def _succeed(self, hand: Hand, entries: list[Entry], *, full: bool = False) -> None:
        ends = [
            (entry, Outcome("complete", "", tries_of(entry), self._text())) for entry in entries
        ]
        plain = [end for end in ends if id_of(end[0]).encode() == end[0][0]]
        own = [end for end in ends if end not in plain]

        def tell(replies: list[Any]) -> None:
            complete = self.model.complete
            well = [complete(e[0], _keep_ms(e), out, gated=full) for e, out in plain]
            recorded = [self.model.finish(entry[0], outcome) for entry, outcome in own]
            # By a batch XACK and XDEL are told, by scripts one number each.
            told = well if full else [[sum(well)] * 2] * bool(plain)
            answers = [reply for reply in replies if reply not in (b"OK", b"QUEUED")]
            answers = [reply[-2:] if isinstance(reply, list) else reply for reply in answers]
            same(answers, told + [sum(recorded)] * bool(own))

        self.line.full = hand.settler if full else None
        with self.settling(hand, tell):
            for entry, outcome in ends:
                hand.end(entry, outcome.body)
        self.line.full = None

    def _fail(self, hand: Hand, entry: Entry, how: str) -> None:
        tries, text = tries_of(entry), self._text()
        delay_s = HOUR_S if how == "later" else 0
        errors = {"fails": (ValueError(text), "failed"), "rejects": (Reject(text), "rejected")}
        error, reason = errors.get(how) or (Retry(text, defer=delay_s), "retries")

        def tell(replies: list[Any]) -> None:
            if reason == "retries" and tries < MAX_TRIES:
                told = self.model.retry(entry[0], hand.name, delay_s * 1000)
            else:
                told = self.model.bury(entry[0], hand.name, Outcome("failed", reason, tries, text))
            same(replies, [told])

        with self.settling(hand, tell):
            hand.end(entry, error)

    def _text(self) -> str:
        """Something by which an end is known."""
        self.ends += 1
        return f"{self.ends}"

    def again(self, a: int, b: int) -> None:
        """One of the last requests comes once more, just as it was."""
        if self.sent:
            sent = self.sent[a % len(self.sent)]
            sent.tell(self.line.ask(sent.packed, sent.replies))
        else:
            self.enqueue(a, b)

    # Time

    def advance(self, a: int, b: int) -> None:
        self.move_time(STEPS_MS[a % len(STEPS_MS)])

    def to_the_end(self) -> Iterator[None]:
        """Moves after which each job has ended: all become due, and what is left ends well."""
        self.move_time(_DECADES_MS)
        yield
        while self.model.living():
            self.promote(0, 0)
            yield
            while self.model.living(QUEUED):
                self.read(0, 2)
                yield
            for job in self.model.living(RUNNING):
                self._give(job.entry or b"")
            yield
            if self.hands[0].held:
                self.end_all(0, 0)
                yield

    def _give(self, entry: bytes) -> None:
        if entry not in self.hands[0].held:
            self._claim(entry, self.hands[0].name)


def _keep_ms(entry: Entry) -> int:
    kept = field(entry, b"k")
    return KEEP_S * 1000 if kept is None else int(kept)
