"""Jobs that end as a test says, and what can be seen of those that are to run again."""

from __future__ import annotations

from typing import Any, cast

from fastq import Context
from fastq.outcome import Envelope
from workers import Queue

AN_HOUR_S = 3600
SOON: dict[str, Any] = {"backoff": staticmethod(lambda tries: 0.01)}


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


class Sight(Queue):
    """A queue, with its deferred jobs."""

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

    def record(self, job_id: str) -> dict[str, bytes]:
        found = cast(dict[bytes, bytes], self.redis.hgetall(f"{self.base}:job:{job_id}"))
        return {name.decode(): value for name, value in found.items()}

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
