"""The reference model of a queue: where each job is, by what is promised and by nothing else.

It knows neither keys nor commands. Its time moves by `advance` alone; what really passes during a
history is noise, far below the distances between the times that occur in one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

MEMORY_MS = 60_000
"""How long after an enqueueing the same one, sent again, is known."""
ONCE = b"1"
"""The nonce of an id that nobody else has: its result, too, tells that it has been enqueued."""
QUEUED, RUNNING, DEFERRED, ENDED = "queued", "running", "deferred", ""
RELEASED = "released"


class Outcome(NamedTuple):
    """A stored outcome. `body` is the value or the error's message; of what expired, nothing."""

    status: str
    reason: str
    tries: int
    body: str


class Result(NamedTuple):
    """What is kept of a job: its outcome, or (None) the fence against what a zombie tells."""

    outcome: Outcome | None
    until_ms: float


class Dead(NamedTuple):
    """A dead entry; `life` tells which of the enqueueings of that id it was,
    `first_ms` when."""

    job_id: str
    reason: str
    life: int
    tries: int
    first_ms: int


@dataclass(frozen=True)
class Ask:
    """An enqueueing. `entry` and `consumer` are of the run that enqueues its own job anew."""

    job_id: str
    life: int
    keep_ms: int
    nonce: bytes = b""
    defer_ms: int = 0
    expires_ms: int | None = None
    entry: bytes = b""
    consumer: str = ""


@dataclass
class Job:
    """One life of a job: from an enqueueing to its end.

    `entry` is None until the server has said which it is. A job that is running at `RELEASED` waits
    there for whoever takes it.
    """

    ask: Ask
    since_ms: float
    where: str = ENDED
    entry: bytes | None = None
    consumer: str = ""
    due_ms: float = 0
    tries: int = 0
    recorded: bool = True
    fenced: bool = False
    remembered: bool = False
    next: Job | None = None
    first_ms: int | None = None
    # Its entry is not its enqueueing, so it has to carry when that was.
    is_dated: bool = False

    @property
    def id(self) -> str:
        return self.ask.job_id

    @property
    def expires_ms(self) -> float | None:
        expires_ms = self.ask.expires_ms
        return None if expires_ms is None else self.since_ms + expires_ms

    def has_expired(self, now_ms: float) -> bool:
        return self.expires_ms is not None and self.expires_ms <= now_ms


class Model:
    """A queue. Each move returns what the server has to answer."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.jobs: dict[str, Job] = {}
        self.results: dict[str, Result] = {}
        self.dead: list[Dead] = []
        self.last_tick_ms = 0

    def living(self, *where: str) -> list[Job]:
        return [
            job for job in self.jobs.values() if job.where in (where or (QUEUED, RUNNING, DEFERRED))
        ]

    def status(self, job_id: str) -> str:
        job, result = self.jobs.get(job_id), self.results.get(job_id)
        if job is not None and job.where:
            return QUEUED if job.consumer == RELEASED else job.where
        return result.outcome.status if result and result.outcome else "not_found"

    # Into the queue

    def add_plain(self, ask: Ask) -> None:
        self.jobs[ask.job_id] = Job(ask, self.now_ms, QUEUED, ask.job_id.encode(), recorded=False)

    def enqueue(self, ask: Ask) -> int:
        job = self.jobs.get(ask.job_id)
        if self._knows(ask):
            return 0
        if job is None or not job.where:
            self._put(self._life(ask))
            return 0
        if job is not self._run(ask.entry, ask.consumer):
            return 1
        if job.next is None:
            job.next = self._life(ask)
        return int(job.next.ask.nonce != ask.nonce)

    def _knows(self, ask: Ask) -> bool:
        """True if this very enqueueing has been done."""
        job = self.jobs.get(ask.job_id)
        if job is not None and (job.where or job.remembered) and job.ask.nonce == ask.nonce:
            return True
        return ask.nonce == ONCE and ask.job_id in self.results

    def tick(self, ask: Ask, tick_ms: int, how: str) -> int:
        """A tick of a cron entry that is over; `how` as the script has it."""
        if tick_ms <= self.last_tick_ms:
            return -1
        self.last_tick_ms = tick_ms
        job = self.jobs.get(ask.job_id)
        if how == "skip" or (how == "unique" and job is not None and job.where):
            return 0
        self._put(self._life(ask))
        return 1

    def _life(self, ask: Ask) -> Job:
        return Job(ask, self.now_ms, due_ms=self.now_ms + ask.defer_ms)

    def _put(self, job: Job) -> None:
        job.where = QUEUED if job.due_ms <= self.now_ms else DEFERRED
        job.is_dated = job.where == DEFERRED or job.since_ms < self.now_ms
        self.jobs[job.id] = job
        self.results.pop(job.id, None)

    def promote(self) -> tuple[int, float | None]:
        """How many were due, and when the next is."""
        due = [job for job in self.living(DEFERRED) if job.due_ms <= self.now_ms]
        for job in due:
            if job.has_expired(self.now_ms):
                self._bury(job, Outcome("expired", "expired", job.tries, ""))
            else:
                job.where = QUEUED
        left = [job.due_ms for job in self.living(DEFERRED)]
        return len(due), min(left, default=None)

    # To consumers

    def read(self, consumer: str, count: int) -> list[Job]:
        found = sorted(self.living(QUEUED), key=_place)[:count]
        for job in found:
            job.where, job.consumer = RUNNING, consumer
        return found

    def has_expired(self, entry: bytes) -> bool:
        """True if a run as this entry must not begin."""
        job = self._run(entry)
        return job is not None and job.has_expired(self.now_ms)

    def claim(self, entry: bytes, consumer: str) -> None:
        job = self._run(entry)
        assert job is not None
        job.consumer = consumer

    def hand_back(self, entries: list[bytes], consumer: str) -> int:
        found = [job for entry in entries if (job := self._run(entry, consumer))]
        for job in found:
            job.consumer = RELEASED
        return len(found)

    def _run(self, entry: bytes, consumer: str | None = None) -> Job | None:
        """The job that runs as this entry, if it does (at this consumer)."""
        for job in self.living(RUNNING):
            if job.entry == entry:
                return job if consumer in (None, job.consumer) else None
        return None

    # Ends: the first one counts. A success is taken from anyone, all else from the owner alone.

    def complete(self, entry: bytes, keep_ms: int, outcome: Outcome, *, gated: bool) -> int:
        """A success of a plain job.

        Where a zombie comes so late that the result of the job has expired, its own is kept: that
        is the one thing in which it is believed, and only if the server is not full (`gated`).
        """
        job, job_id = self._run(entry), entry.decode()
        if job_id not in self.results and (job is not None or not gated):
            self._keep(job_id, keep_ms, outcome)
        if job is not None:
            job.where = ENDED
        return int(job is not None)

    def finish(self, entry: bytes, outcome: Outcome) -> int:
        """A success of a job with a record."""
        job = self._run(entry)
        if job is not None:
            self._end(job, outcome)
        return int(job is not None)

    def bury(self, entry: bytes, consumer: str, outcome: Outcome) -> int:
        job = self._run(entry, consumer)
        if job is not None:
            self._bury(job, outcome)
        return int(job is not None)

    def retry(self, entry: bytes, consumer: str, delay_ms: int) -> int:
        job = self._run(entry, consumer)
        if job is None:
            return 0
        if not job.recorded:
            job.recorded = job.fenced = True
            self.results[job.id] = Result(None, math.inf)
        job.first_ms = job.first_ms or _place(job)[0]
        job.next, job.entry, job.consumer = None, None, ""
        job.due_ms = self.now_ms + delay_ms
        job.where, job.is_dated = DEFERRED if delay_ms else QUEUED, True
        job.tries += 1
        return 1

    def _bury(self, job: Job, outcome: Outcome) -> None:
        job.first_ms = job.first_ms or _place(job)[0]
        self.dead.append(Dead(job.id, outcome.reason, job.ask.life, outcome.tries, job.first_ms))
        self._end(job, outcome)

    def _end(self, job: Job, outcome: Outcome) -> None:
        job.where = ENDED
        if job.next is not None:
            self._put(job.next)
        else:
            self._keep(job.id, job.ask.keep_ms, outcome)

    def _keep(self, job_id: str, keep_ms: int, outcome: Outcome) -> None:
        self.results.pop(job_id, None)
        if keep_ms:
            until_ms = math.inf if keep_ms < 0 else self.now_ms + keep_ms
            self.results[job_id] = Result(outcome, until_ms)

    # Time

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.results = {i: r for i, r in self.results.items() if r.until_ms > self.now_ms}

    def forgets_too_soon(self, job: Job) -> bool:
        """True if the enqueueing of an ended job is not known any more, though it has to be.

        After that it may be, for a while: `remembered` tells what the server then does.
        """
        in_time = self.now_ms < job.since_ms + MEMORY_MS
        return job.recorded and bool(job.ask.nonce) and in_time and not self._knows(job.ask)


def _place(job: Job) -> tuple[int, int]:
    ms, _, number = (job.entry or b"").partition(b"-")
    return int(ms), int(number)
