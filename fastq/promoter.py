"""The promoter: moves deferred jobs into the stream when they are due."""

from __future__ import annotations

from fastq._core import ReplyError
from fastq.connection import Connection, named
from fastq.keys import QueueKeys
from fastq.scripts import PAGE_BYTES, PROMOTE, Part, cap_of

# Fewer than a script may move: all else waits meanwhile, and a due crowd is many pages.
_PAGE_JOBS = 100
_LOOK_S = 1.0
"""It looks at least so often; jobs that are due sooner come with a `wake`."""


class Promoter:
    """Promotes what is due by the server's clock, and sleeps until the next job is."""

    name = "promoter"
    hurries = True

    def __init__(
        self, keys: QueueKeys, *, db: int, keep_ms: int, keep_dead: tuple[int, float | None]
    ) -> None:
        self._keys = (keys.stream, keys.deferred, keys.dead, keys.meta, keys.none)
        self._deferred = keys.deferred
        prefixes = (keys.control(db), keys.record_prefix, keys.result_prefix)
        cap = cap_of(keep_dead)
        self._args: tuple[Part, ...] = (*prefixes, _PAGE_JOBS, PAGE_BYTES, keep_ms, *cap)

    async def run(self, connection: Connection) -> float:
        """Promotes one page; the seconds until the next job is due."""
        _, due_ms, now_ms = await self.promote(connection)
        return _LOOK_S if due_ms < 0 else min(_LOOK_S, max(0.0, (due_ms - now_ms) / 1000))

    async def promote(self, connection: Connection) -> tuple[int, int, int]:
        """One page: how many were moved, when the next is due (-1: none), and now, in ms."""
        try:
            moved, due_ms, now_ms = await PROMOTE.call(connection, self._keys, self._args)
        except ReplyError as error:
            raise named(error, self._keys[:4]) from error
        return moved, due_ms, now_ms
