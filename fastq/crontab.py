"""The crontab: enqueues the jobs of cron entries at their ticks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastq._core import ReplyError
from fastq.clock import RedisClock, from_ms
from fastq.connection import Connection, named
from fastq.cron import CronEntry
from fastq.keys import QueueKeys
from fastq.scripts import CRON, Part

log = logging.getLogger("fastq.crontab")

LATE_MS = 60_000
"""A tick that is later than this does not fire, unless its entry catches up."""
_MOST_MISSED = 1_000
_LONGEST_S = 60.0
_FIRED, _SKIPPED, _OVER, _EARLY = 1, 0, -1, -2


class Crontab:
    """Fires each tick of each entry once, by the server's clock.

    1. Reads which tick of each entry was the last; the server's hash is the gate for all leaders.
    2. Fires those that have come since, in order; those that are too late are skipped.
    3. Sleeps until the next one.
    """

    name = "crontab"
    hurries = False

    def __init__(
        self, keys: QueueKeys, entries: Sequence[CronEntry], clock: RedisClock, *, db: int
    ) -> None:
        self._keys = keys
        self._entries = entries
        self._clock = clock
        self._channel = keys.control(db)

    async def run(self, connection: Connection) -> float:
        """Fires what has come; the seconds until the next tick."""
        if not self._entries:
            return _LONGEST_S
        lasts = await self._lasts(connection)
        nexts: list[int | None] = []
        refused: ReplyError | None = None
        for entry, last_ms in zip(self._entries, lasts, strict=True):
            try:
                nexts.append(await self._fire_missed(connection, entry, last_ms))
            except ReplyError as error:
                # A key of another type, say: that is no reason for the others to wait.
                refused = error
        if refused is not None:
            raise refused
        soonest_ms = min((due_ms for due_ms in nexts if due_ms is not None), default=None)
        if soonest_ms is None:
            return _LONGEST_S
        return min(_LONGEST_S, max(0.0, (soonest_ms - self._clock.now_ms()) / 1000))

    async def _lasts(self, connection: Connection) -> list[int]:
        """The last tick of each entry; of one that is new, now: it has missed nothing."""
        names = [entry.name for entry in self._entries]
        try:
            found: list[Any] = await connection.call("HMGET", self._keys.cron, *names)
        except ReplyError as error:
            raise named(error, (self._keys.cron,)) from error
        now_ms = self._clock.now_ms()
        lasts = dict(zip(names, map(_tick_of, found), strict=True))
        for name, last, text in zip(names, lasts.values(), found, strict=True):
            if last is None:
                # Somebody's hands were in there: what is no tick would let none through.
                how = "HSETNX" if text is None else "HSET"
                await connection.call(how, self._keys.cron, name, now_ms)
        return [now_ms if last is None else last for last in lasts.values()]

    async def _fire_missed(
        self, connection: Connection, entry: CronEntry, last_ms: int
    ) -> int | None:
        """Fires the ticks since the last; when the next one comes."""
        now_ms = self._clock.now_ms()
        missed = entry.schedule.missed(last_ms, now_ms, _MOST_MISSED)
        late = [] if entry.catch_up else [t for t in missed if now_ms - t > LATE_MS]
        if late:
            # The last of them stands for all: the gate lets none before it through.
            await self._fire(connection, entry, late[-1], "skip")
            log.warning("Cron %s: ticks up to %s were missed", entry.name, from_ms(late[-1]))
        for tick_ms in missed[len(late) :]:
            how = "unique" if entry.unique else "fire"
            if await self._fire(connection, entry, tick_ms, how) == _EARLY:
                return tick_ms  # the clock here was ahead; it has been told
        return entry.schedule.next_after(max(last_ms, now_ms))

    async def _fire(self, connection: Connection, entry: CronEntry, tick_ms: int, how: str) -> int:
        keys = self._keys
        job_id = f"cron:{entry.name}" if entry.unique else f"cron:{entry.name}:{tick_ms}"
        per_job = (keys.stream, keys.deferred, keys.record(job_id), keys.result(job_id), keys.cron)
        fields: tuple[Part, ...] = ("f", entry.function, "d", entry.payload, *entry.fields)
        fired: int
        fired, now_ms = await CRON.call(
            connection, per_job, (job_id, entry.name, tick_ms, how, self._channel, *fields)
        )
        if fired == _EARLY:
            self._clock.told(now_ms)
        elif fired == _FIRED:
            log.debug("Cron %s fired %s", entry.name, from_ms(tick_ms))
        elif fired == _SKIPPED and how == "unique":
            log.info("Cron %s: %s was skipped, its last run is there", entry.name, from_ms(tick_ms))
        return fired


def _tick_of(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 15 else None
