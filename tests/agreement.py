"""Whether a queue on a server is as its model says, down to each field and time."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

from fastq._core import pack
from fastq.keys import GROUP, QueueKeys
from fastq.outcome import Envelope
from fastq.results import status
from hands import Entry, field, finished, id_of, tries_of
from model import DEFERRED, ENDED, MEMORY_MS, QUEUED, RUNNING, Dead, Job, Outcome
from scene import KEEP_S, Scene, is_near, same

# All of a queue in one look: entries, who holds them, deferred jobs, the dead, the time, and each
# other key with what is left of its TTL.
_LOOK = """
local base, group = ARGV[1], ARGV[2]
local function list(job)
  return { job.entry or '', job.nonce or '', job.since, job.due or 0, job.fields or {} }
end
local keys = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  local value = ''
  if string.sub(key, 1, #base + 4) == base .. 'job:' then
    local record = cmsgpack.unpack(redis.call('GET', key))
    value = list(record)
    value[#value + 1] = record.next and list(record.next) or {}
  elseif string.sub(key, 1, #base + 7) == base .. 'result:' then
    value = redis.call('GET', key)
  end
  keys[#keys + 1] = { key, redis.call('PTTL', key), value }
end
return { redis.call('XRANGE', base .. 'stream', '-', '+'),
  redis.call('XPENDING', base .. 'stream', group, '-', '+', 1000),
  redis.call('ZRANGE', base .. 'deferred', 0, -1, 'WITHSCORES'),
  redis.call('XRANGE', base .. 'dead', '-', '+'), redis.call('TIME'), keys }
"""


class Record(NamedTuple):
    """A record, or what it enqueues next, as far as this looks."""

    entry: bytes
    nonce: bytes
    since_ms: int
    due_ms: int
    fields: list[bytes]
    next: list[Any]


class Look:
    """A queue, at one instant."""

    def __init__(self, scene: Scene) -> None:
        job_ids = [*scene.model.jobs, "nobody"]
        packed = [_ask_status(job_id, scene.keys.name) for job_id in job_ids]
        packed.insert(0, pack("EVAL", _LOOK, 0, scene.base, GROUP))
        found, *statuses = scene.line.ask(b"".join(packed), len(packed))
        self.statuses = {i: s.decode() for i, s in zip(job_ids, statuses, strict=True)}
        entries, pending, deferred, self.dead, (seconds, micros), keys = found
        self.now_ms = int(seconds) * 1000 + int(micros) // 1000
        self.entries: dict[bytes, Entry] = {entry[0]: entry for entry in entries}
        self.pending = {entry: consumer.decode() for entry, consumer, *_ in pending}
        due = zip(deferred[::2], deferred[1::2], strict=True)
        self.deferred = {job_id.decode(): float(score) for job_id, score in due}
        self.keys = {key.removeprefix(scene.base).decode(): (ttl_ms, v) for key, ttl_ms, v in keys}
        self.records = self._called("job:")
        self.results = self._called("result:")

    def _called(self, prefix: str) -> dict[str, tuple[int, Any]]:
        names = [name for name in self.keys if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.keys[name] for name in names}


class _Catcher:
    """In the place of a connection: what would have been sent."""

    packed = b""

    async def request(self, packed: bytes) -> bytes:
        self.packed = packed
        return b""


@cache
def _ask_status(job_id: str, queue: str) -> bytes:
    catcher = _Catcher()
    finished(status(catcher, QueueKeys(queue), job_id))  # type: ignore[arg-type]
    return catcher.packed


class Agreement:
    """The server and the model agree. 1. on places, 2. on what is written there, 3. on records,
    4. on results, 5. on the dead, 6. on what is told of each job. What the server alone can know,
    such as the ids of entries, the model learns here, once.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.model = scene.model
        self.look = Look(scene)
        for entry in self.look.entries:
            scene.born_ms.setdefault(entry, scene.moved_ms)
        self.places()
        for job in self.model.living():
            self.content(job)
        assert self.look.records.keys() <= self.model.jobs.keys()
        for job in self.model.jobs.values():
            self.record(job)
        self.results()
        same(sorted(map(_dead, self.look.dead)), sorted(self.model.dead))
        same(self.look.statuses, {i: self.model.status(i) for i in self.look.statuses})

    def places(self) -> None:
        look = self.look
        found = [(job_id, DEFERRED, "") for job_id in look.deferred]
        for entry in look.entries.values():
            consumer = look.pending.get(entry[0])
            found.append((id_of(entry), QUEUED if consumer is None else RUNNING, consumer or ""))
        living = self.model.living()
        same(sorted(found), sorted((job.id, job.where, job.consumer) for job in living))
        assert look.pending.keys() <= look.entries.keys()

    def content(self, job: Job) -> None:
        if job.where == DEFERRED:
            record = Record(*self.look.records[job.id][1])
            assert self.is_at(self.look.deferred[job.id], job.due_ms)
            self.fields(job, [b"", record.fields], 0)
            return
        ours = [e for e in self.look.entries.values() if id_of(e) == job.id]
        ((entry, fields),) = ours
        job.entry = job.entry or entry
        same(entry, job.entry)
        self.fields(job, [entry, fields], self.scene.moved_ms - self.scene.born_ms[entry])

    def fields(self, job: Job, entry: Entry, late_ms: int) -> None:
        """What the next run is made of. `late_ms`: how far its times have not been moved."""
        kept = int(field(entry, b"k") or KEEP_S * 1000)
        found = (field(entry, b"f"), _life(entry), kept, tries_of(entry) - 1)
        same(found, (b"work", job.ask.life, job.ask.keep_ms, job.tries))
        expires, first = field(entry, b"x"), field(entry, b"e")
        assert (expires is None) is (job.expires_ms is None)
        assert job.expires_ms is None or self.is_at(int(expires or 0) - late_ms, job.expires_ms)
        if first is not None and job.first_ms is None:
            job.first_ms = int(first)
            assert self.is_at(job.first_ms - late_ms, job.since_ms)
        assert int(first) == job.first_ms if first is not None else not job.is_dated

    def is_at(self, ms: float, model_ms: float) -> bool:
        """True if a time of the server is one of the model."""
        return is_near(ms - self.look.now_ms, model_ms - self.model.now_ms)

    def record(self, job: Job) -> None:
        ttl_ms, found = self.look.records.get(job.id, (0, None))
        if job.where == ENDED:
            job.remembered = found is not None
            assert not self.model.forgets_too_soon(job)
            assert not job.remembered or 0 < ttl_ms <= MEMORY_MS
        elif job.recorded:
            same(ttl_ms, -1)
            self.live_record(job, Record(*found))
        else:
            same(found, None)

    def live_record(self, job: Job, record: Record) -> None:
        in_stream = job.where != DEFERRED
        entry = (job.entry or b"") if in_stream else b""
        same((record.nonce, record.entry), (job.ask.nonce, entry))
        same((bool(record.fields), bool(record.next)), (not in_stream, job.next is not None))
        if job.next is not None:
            _, nonce, _, due_ms, fields = record.next
            life = _life([b"", fields])
            same((nonce, life), (job.next.ask.nonce, job.next.ask.life))
            assert self.is_at(due_ms, job.next.due_ms)

    def results(self) -> None:
        found = {job_id: _outcome(value) for job_id, (_, value) in self.look.results.items()}
        same(found, {job_id: r.outcome for job_id, r in self.model.results.items()})
        for job_id, result in self.model.results.items():
            left_ms = self.look.results[job_id][0]
            same(left_ms == -1, result.until_ms == math.inf)
            assert left_ms == -1 or is_near(left_ms, result.until_ms - self.model.now_ms)


def _outcome(data: bytes) -> Outcome | None:
    """A stored outcome; None for a fence."""
    if data == b"~":
        return None
    envelope = Envelope.unpack(data)
    body = envelope.body.decode() if envelope.status == "complete" else envelope.error.message
    body = "" if envelope.status == "expired" else body
    return Outcome(envelope.status, envelope.reason, envelope.tries, body)


def _dead(entry: Entry) -> Dead:
    job_id, reason = field(entry, b"id") or b"", field(entry, b"reason") or b""
    tries, first = field(entry, b"tries"), field(entry, b"e")
    return Dead(job_id.decode(), reason.decode(), _life(entry), int(tries or -1), int(first or -1))


def _life(entry: Entry) -> int:
    return int((field(entry, b"d") or b"").strip(b"[]"))
