"""Jobs that end as a test says, and what can be seen of those that are to run again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any, cast

import redis

from counted import COUNTER, Counted, count, kill_named
from fastq import Context, Retry
from fastq.connection import Connection
from fastq.outcome import Envelope
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import Queue

AN_HOUR_S = 3600
SOON: dict[str, Any] = {"backoff": staticmethod(lambda tries: 0.01)}


# The server packed it, with bytes that need not be text.
_READ = """
local data, found = redis.call('GET', KEYS[1]), {}
for name, value in pairs(data and cmsgpack.unpack(data) or {}) do
  if name == 'fields' then
    for _, part in ipairs(value) do
      found[#found + 1] = part
    end
  else
    found[#found + 1] = ':' .. name
    found[#found + 1] = tostring(value)
  end
end
return found
"""
_WRITE = """
local record, fields = cmsgpack.unpack(redis.call('GET', KEYS[1])), {}
if string.sub(ARGV[1], 1, 1) == ':' then
  record[string.sub(ARGV[1], 2)] = tonumber(ARGV[2]) or ARGV[2]
else
  for i = 1, #record.fields, 2 do
    if record.fields[i] ~= ARGV[1] then
      fields[#fields + 1] = record.fields[i]
      fields[#fields + 1] = record.fields[i + 1]
    end
  end
  fields[#fields + 1] = ARGV[1]
  fields[#fields + 1] = ARGV[2]
  record.fields = fields
end
redis.call('SET', KEYS[1], cmsgpack.pack(record))
"""


class Flaky:
    """A job whose runs end like this, one after the other; the last end is that of all further."""

    def __init__(self, *ends: BaseException | None) -> None:
        self.ends = ends
        self.tries: list[int] = []

    async def run(self, ctx: Context) -> list[int]:
        return self.once(ctx)

    def sync(self, ctx: Context) -> list[int]:
        return self.once(ctx)

    def once(self, ctx: Context) -> list[int]:
        self.tries.append(ctx.tries)
        end = self.ends[min(len(self.tries), len(self.ends)) - 1]
        if end is not None:
            raise end
        return self.tries

    def again(self) -> None:
        """Begins anew, for the next job."""
        self.tries = []


async def again(ctx: Context, defer_s: float) -> int:
    """Counts this run; the first is over when the test says `go`, and asks for another."""
    await count(ctx)
    if ctx.tries == 1:
        await cast(Mapping[str, Connection], ctx.state)["counter"].call("BLPOP", "go", 30)
        raise Retry(defer=defer_s)
    return ctx.tries


class Again(Counted):
    """`fastq-worker retrying:Again --redis URL`."""

    functions = (again,)


class Held:
    """A job whose first run ends so when the test lets it go; the second ends well."""

    def __init__(self, end: BaseException | None) -> None:
        self.end = end
        self.go = asyncio.Event()
        self.runs = 0

    async def run(self) -> str:
        self.runs += 1
        if self.runs == 1:
            await self.go.wait()
            if self.end is not None:
                raise self.end
            return "zombie"
        return "second"


ENDS: dict[str, BaseException | None] = {
    "well": None,
    "badly": ValueError("zombie"),
    "later": Retry(defer=0.01),
    "at once": Retry(defer=0),
}
LOST = "no longer this worker's"


class Sight(Queue):
    """A queue, with its deferred jobs."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.server = server

    def now_ms(self) -> int:
        seconds, micros = cast(tuple[int, int], self.redis.time())
        return seconds * 1000 + micros // 1000

    def deferred(self) -> list[str]:
        found = cast(list[bytes], self.redis.zrange(f"{self.base}:deferred", 0, -1))
        return [job_id.decode() for job_id in found]

    def due_ms(self, job_id: str) -> float | None:
        return cast("float | None", self.redis.zscore(f"{self.base}:deferred", job_id))

    def make_due(self, *job_ids: str) -> None:
        """As if their time had come; the leader is told."""
        self.redis.zadd(f"{self.base}:deferred", dict.fromkeys(job_ids, 1))
        self.redis.publish(f"{self.base}:control:0", "wake")

    def entry_of(self, job_id: str) -> str:
        """The entry of a job that waits in the stream, or runs."""
        return self.record(job_id).get(":entry", job_id.encode()).decode()

    def claim(self, job_id: str, consumer: str) -> None:
        """As if the lease of who runs it had ended."""
        entry = self.entry_of(job_id)
        self.redis.xclaim(self.stream, "fastq", consumer, 0, [entry], justid=True)

    def record(self, job_id: str) -> dict[str, bytes]:
        """Its own fields, with a colon before the name, and those of its entry to be."""
        found = cast(list[bytes], self.redis.eval(_READ, 1, self.record_key(job_id)))
        return {k.decode(): v for k, v in zip(found[::2], found[1::2], strict=True)}

    def change(self, job_id: str, name: str, value: str) -> None:
        """Changes one of these in a record; its TTL, if any, is over."""
        self.redis.eval(_WRITE, 1, self.record_key(job_id), name, value)

    def record_key(self, job_id: str) -> str:
        return f"{self.base}:job:{job_id}"

    def entries(self) -> list[dict[str, bytes]]:
        found = cast(list[tuple[bytes, dict[bytes, bytes]]], self.redis.xrange(self.stream))
        return [{name.decode(): value for name, value in fields.items()} for _, fields in found]

    def result(self, job_id: str) -> bytes | None:
        return cast("bytes | None", self.redis.get(f"{self.base}:result:{job_id}"))

    def tries_told(self, job_id: str) -> int:
        """By the stored outcome."""
        data = self.result(job_id)
        assert data is not None
        return Envelope.unpack(data).tries

    def is_settled(self) -> bool:
        """True if nothing waits, runs or is deferred."""
        return (self.length(), self.pending(), self.deferred()) == (0, {}, [])

    def runs_again(self) -> bool:
        """True once the first run of a job has been settled so."""
        return bool(self.deferred()) or any("t" in entry for entry in self.entries())


def let_go() -> None:
    """Ends the first run of one `again`."""
    with redis.Redis.from_url(os.environ[COUNTER]) as counter:
        counter.rpush("go", 1)


async def take_over(queue: Sight, job_id: str, worker: Worker) -> None:
    """What a sweep and a take do: this worker runs the job now."""
    queue.claim(job_id, worker.consumer)
    # It looks for what is pending for it when it comes back.
    await eventually(lambda: kill_named(queue.server, f"{worker.consumer}:writer"))
