"""A queue on a real server, with its model beside it and its time in the test's hands.

The server's own `TIME` cannot be moved, so all else is moved back instead: due times, expiries, the
times in records, what is left of each TTL. Entries of a stream cannot be changed: what is a time of
them (field `x`) is put right when they are read. `e` says when a job was enqueued and is no time
that anything waits for, so it stays.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import fastq
from fastq import Client, cron
from fastq._core import pack
from fastq.clock import RedisClock
from fastq.crontab import Crontab
from fastq.duties import promoter_of
from fastq.fetcher import create_group
from fastq.keys import QueueKeys
from fastq.scripts import BURY, COMPLETE, CRON, ENQUEUE, FINISH, HAND_BACK, PROMOTE, RETRY, STATUS
from hands import Entry, Hand, Line
from model import RUNNING, Model
from servers import Server
from workers import settings_of

_SCRIPTS = (BURY, COMPLETE, CRON, ENQUEUE, FINISH, HAND_BACK, PROMOTE, RETRY, STATUS)
HOUR_S = 3_600
KEEP_S = 3 * HOUR_S
MAX_TRIES = 3
_PAST = datetime(2001, 1, 1, tzinfo=UTC)
_FUTURE = datetime.now(UTC) + timedelta(days=10 * 365)
# What a job is enqueued with. The id True is one of the names.
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"keep_result": 0},
    {"job_id": True},
    {"job_id": True, "keep_result": 0},
    {"expires": 2 * HOUR_S},
    {"job_id": True, "defer_by": HOUR_S},
    {"job_id": True, "defer_by": HOUR_S, "expires": 2 * HOUR_S},
    {"job_id": True, "expires": 2 * HOUR_S, "keep_result": None},
    {"job_id": True, "defer_until": _PAST},
    {"defer_until": _FUTURE, "expires": 2 * HOUR_S},
    {"defer_by": 3 * HOUR_S, "keep_result": None},
    {"expires": 2 * HOUR_S, "keep_result": 0},
)

_SHIFT = """
local base, ms = ARGV[1], tonumber(ARGV[2])
local function shift(job, ...)
  for _, name in ipairs({...}) do
    job[name] = job[name] and job[name] - ms
  end
  for i = 1, #(job.fields or {}), 2 do
    if job.fields[i] == 'x' then
      job.fields[i + 1] = tonumber(job.fields[i + 1]) - ms
    end
  end
end
for _, key in ipairs(redis.call('KEYS', base .. '*')) do
  if string.sub(key, 1, #base + 4) == base .. 'job:' then
    local record = cmsgpack.unpack(redis.call('GET', key))
    shift(record, 'since')
    if record.next then
      shift(record.next, 'since', 'due')
    end
    redis.call('SET', key, cmsgpack.pack(record), 'KEEPTTL')
  end
  local left = redis.call('PTTL', key)
  if left >= 0 then
    redis.call('PEXPIRE', key, left - ms)
  end
end
local deferred = redis.call('ZRANGE', base .. 'deferred', 0, -1, 'WITHSCORES')
for i = 1, #deferred, 2 do
  redis.call('ZADD', base .. 'deferred', 'XX', deferred[i + 1] - ms, deferred[i])
end
"""


async def work(life: int) -> int:
    """Never called: how a run ends is the history's to say."""
    return life


@dataclass
class Sent:
    """Something that may be sent again. `tell` has the model do the same, and compares replies."""

    packed: bytes
    replies: int
    tell: Callable[[list[Any]], None]


class Scene:
    """1. sets up a queue with two workers, 2. notes what is sent, 3. moves time."""

    def __init__(self, server: Server, runner: asyncio.Runner) -> None:
        self._server = server
        self._runner = runner
        self.settings = settings_of(
            server, work, keep_result=KEEP_S, max_tries=MAX_TRIES, keep_dead=(10_000, None)
        )
        self.keys = QueueKeys(self.settings.queue)
        self.base = self.keys.stream.removesuffix(b"stream")
        self.client = Client.from_settings(self.settings)
        self.promoter = promoter_of(self.settings, self.keys)
        self.cron = cron("* * * * *", fastq.call(work, 0), name="tick").entry(
            self.settings.codec, UTC
        )
        self.crontab = Crontab(self.keys, (self.cron,), RedisClock(), db=self.settings.redis.db)
        self.line = Line(server)
        for script in _SCRIPTS:
            self.line.ask(pack("SCRIPT", "LOAD", script.source))

    def close(self) -> None:
        self.line.close()

    def begin(self) -> None:
        """A new history."""
        self._server.empty()
        self.line.close()
        self.line = Line(self._server)
        self.line.ask(create_group(self.keys))
        self.model = Model()
        self.hands = self._runner.run(self._hands())
        self.lives = self.ends = self.ticks = 0
        self.sent: deque[Sent] = deque(maxlen=6)
        # How far time has been moved, and had been when an entry was added.
        self.moved_ms = 0
        self.born_ms: dict[bytes, int] = {}

    async def _hands(self) -> list[Hand]:
        return [Hand(name, self.settings, self.client, self.line) for name in ("A", "B")]

    def anonymous_id(self, size: int) -> str:
        """Stands for the random ids of jobs: a history that failed has to fail again."""
        return f"anonymous{self.lives}"

    def held(self) -> list[tuple[Hand, Entry]]:
        return [(hand, entry) for hand in self.hands for entry in hand.held.values()]

    def zombies(self) -> list[tuple[Hand, Entry]]:
        """What is held by somebody who does not own it."""
        owned = {(job.consumer, job.entry) for job in self.model.living(RUNNING)}
        return [(hand, entry) for hand, entry in self.held() if (hand.name, entry[0]) not in owned]

    @contextmanager
    def saying(self, tell: Callable[[list[Any]], None]) -> Iterator[None]:
        """What is sent in here is noted, as it may be sent again."""
        self.line.said.clear()
        self.line.heard.clear()
        yield
        replies = list(self.line.heard)
        tell(replies)
        if replies:
            self.sent.append(Sent(b"".join(self.line.said), len(replies), tell))

    @contextmanager
    def settling(self, hand: Hand, tell: Callable[[list[Any]], None]) -> Iterator[None]:
        """The same of what a worker's settler sends."""
        with self.saying(tell):
            yield
            hand.settler.flush()
            self.line.flush()
        same(hand.settler.unanswered, 0)

    def move_time(self, ms: int) -> None:
        self.line.ask(pack("EVAL", _SHIFT, 0, self.base, ms))
        self.model.advance(ms)
        self.moved_ms += ms
        for _, entry in self.held():
            _shift_expiry(entry, ms)
        # A retry of a job that expires says when, and cannot be changed any more.
        timeless = [sent for sent in self.sent if b"\r\nx\r\n" not in sent.packed]
        self.sent = deque(timeless, self.sent.maxlen)

    def catch_up(self, entry: Entry) -> None:
        """Moves the time of an entry that was read now as far as all else has been moved."""
        _shift_expiry(entry, self.moved_ms - self.born_ms[entry[0]])


def _shift_expiry(entry: Entry, ms: int) -> None:
    fields = entry[1]
    for i in range(0, len(fields), 2):
        if fields[i] == b"x":
            fields[i + 1] = b"%d" % (int(fields[i + 1]) - ms)


def times_of(options: dict[str, Any]) -> dict[str, Any]:
    """Options of an enqueueing as the model has them."""
    keep_s, expires_s = options.get("keep_result", KEEP_S), options.get("expires")
    defer_s = options.get("defer_by", 0)
    if until := options.get("defer_until"):
        defer_s = int(until.timestamp() - time.time())
    return {
        "keep_ms": -1 if keep_s is None else keep_s * 1000,
        "defer_ms": defer_s * 1000,
        "expires_ms": None if expires_s is None else expires_s * 1000,
    }


def same(said: object, told: object) -> None:
    """What the server has said is what the model tells."""
    assert said == told, f"the server: {said!r}; the model: {told!r}"


def is_near(one_ms: float, other_ms: float) -> bool:
    """True if they differ by no more than what passes in a history."""
    return abs(one_ms - other_ms) < 20_000
