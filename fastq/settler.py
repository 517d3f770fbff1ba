"""Settling: every end of a job reaches the server, however often it has to be sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from fastq._core import ConnectionLost, ReplyError, Run, RunningSet, SettleBatch, SettleQueue
from fastq.complaints import Complaints
from fastq.connection import Backoff, Connection, code_of, wants_reconnect
from fastq.context import enqueued_ms
from fastq.entries import keep_ms
from fastq.keys import GROUP, QueueKeys
from fastq.scripts import BURY, COMPLETE, FINISH, PAGE_BYTES, PAGE_JOBS, RETRY, Part, Script, cap_of

log = logging.getLogger("fastq.settler")


class ScriptSettle:
    """The end of one job or some, said by a script."""

    __slots__ = ("args", "entries", "keys", "script")

    def __init__(
        self,
        script: Script,
        entries: tuple[bytes, ...],
        keys: tuple[bytes, ...],
        args: tuple[Part, ...],
    ) -> None:
        self.script = script
        self.entries = entries
        self.keys = keys
        self.args = args

    def __len__(self) -> int:
        return len(self.entries)

    def pack(self, *, whole: bool = False) -> bytes:
        return self.script.pack(self.keys, self.args, whole=whole)


Settle = SettleBatch | ScriptSettle


class Settler:
    """What this worker has to tell the server of ended jobs.

    1. At the end of a loop turn sends all successes of that turn as one batch; those of jobs with
       a record by script, as one, too.
    2. Keeps each settle until it is answered; an error reply is no answer, so it is sent again.
    3. Sends all that is kept again on a new connection.
    4. Where a full server refuses a batch, settles its jobs one by one by script.
    """

    def __init__(
        self,
        keys: QueueKeys,
        consumer: str,
        running: RunningSet,
        turn_ended: Callable[[], object],
        *,
        db: int,
        keep_dead: tuple[int, float | None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._keys = keys
        self._moves = (keys.stream, keys.deferred, keys.dead, keys.meta)
        self._who: tuple[Part, ...] = (GROUP, consumer, keys.control(db))
        self._cap = cap_of(keep_dead)
        self._turn_ended = turn_ended
        self.queue = SettleQueue(
            running,
            keys.stream,
            GROUP,
            keys.result_prefix,
            wake=lambda: self._loop.call_soon(self.flush),
            done=self._batch_answered,
            own=self._ended_well,
        )
        # Successes of this turn of jobs with a record: entry, id, ms to keep, envelope.
        self._well: list[tuple[bytes, bytes, int, bytes]] = []
        self.unanswered = 0
        # In the order in which they were made, each with whether it was sent on more than one
        # connection: then the server may have done it at the first time.
        self._kept: dict[Settle, bool] = {}
        self._refused: list[Settle] = []
        self._backoff = Backoff(maximum_s=2.0)
        self._complaints = Complaints(log)
        self._again: asyncio.TimerHandle | None = None
        self._connection: Connection | None = None
        self._drained = asyncio.Event()
        self._drained.set()

    def attach(self, connection: Connection) -> None:
        """Sends what is kept on this connection, and from now on all else."""
        self._connection = connection
        self._forget_refused()
        for settle in list(self._kept):
            self._kept[settle] = True
            self._send(settle)

    def detach(self) -> None:
        """Keeps everything until the next connection."""
        self._connection = None
        self._forget_refused()

    def ids(self) -> list[bytes]:
        """The entries of all jobs whose end has not been answered."""
        found: list[bytes] = []
        for settle in self._kept:
            if isinstance(settle, SettleBatch):
                found.extend(run.entry for run in settle.runs)
            else:
                found.extend(settle.entries)
        return found

    def touch(self) -> None:
        """A slot was freed: has the turn's end looked at."""
        self.queue.touch()

    def flush(self) -> None:
        """Sends the turn's batch; before that, lets the fetcher read for the slots that it freed.

        In this order the server delivers the next jobs first, and settles while they run.
        """
        batch = self.queue.take()
        self._turn_ended()
        if batch is not None:
            self._keep(batch)
        if self._well:
            self._finish()

    def bury(self, run: Run, keep_ms: int, envelope: bytes, fields: tuple[Part, ...]) -> None:
        """Ends a job badly: stores the outcome and moves the job to `dead`."""
        self._move(BURY, run, (keep_ms, envelope, *fields))

    def retry(self, run: Run, delay_ms: int, fields: tuple[Part, ...]) -> None:
        """Lets a job run again after a while, as an entry of these fields."""
        self._move(RETRY, run, (delay_ms, enqueued_ms(run), *fields))

    def _move(self, script: Script, run: Run, args: tuple[Part, ...]) -> None:
        record, result = self._keys.record_prefix + run.id, self._keys.result_prefix + run.id
        keys = (*self._moves, record, result)
        args = (*self._who, *self._cap, run.entry, run.id, *args)
        self._keep(ScriptSettle(script, (run.entry,), keys, args))
        self.queue.touch()

    def _ended_well(self, run: Run, envelope: bytes | None) -> None:
        kept_ms = 0 if envelope is None else keep_ms(run.keep)
        self._well.append((run.entry, run.id, kept_ms, envelope or b""))

    def _finish(self) -> None:
        prefixes = (self._keys.record_prefix, self._keys.result_prefix)
        well, self._well = self._well, []
        while well:
            page = [well.pop()]
            size = len(page[0][3])
            while well and len(page) < PAGE_JOBS and size < PAGE_BYTES:
                page.append(well.pop())
                size += len(page[-1][3])
            args = (*self._who, *prefixes, *self._cap, *(part for job in page for part in job))
            self._keep(ScriptSettle(FINISH, tuple(job[0] for job in page), self._moves, args))

    async def drained(self) -> None:
        """Returns once everything is answered."""
        await self._drained.wait()

    def _keep(self, settle: Settle) -> None:
        self._kept[settle] = False
        self.unanswered += len(settle)
        self._drained.clear()
        self._send(settle)

    def _send(self, settle: Settle, *, whole: bool = False) -> None:
        if self._connection is None:
            return
        if isinstance(settle, SettleBatch):
            self._connection.send(settle.pack(), settle)
        else:
            self._connection.call_back(
                settle.pack(whole=whole), partial(self._script_answered, settle)
            )

    def _batch_answered(self, batch: SettleBatch, reply: Any) -> None:
        if isinstance(reply, list):
            errors = [part for part in reply if isinstance(part, ReplyError)]
            if not errors:
                repeated = self._answered(batch)
                lost = len(batch) - reply[-2]
                if lost and not repeated:
                    log.warning("%d finished jobs were no longer this worker's", lost)
                return
            reply = errors[0]
        if isinstance(reply, ReplyError) and code_of(reply) in ("OOM", "EXECABORT"):
            self._split(batch)
        else:
            self._not_answered(batch, reply)

    def _split(self, batch: SettleBatch) -> None:
        """A full server refuses SET in a MULTI, but not in a script that has freed something."""
        envelopes = batch.envelopes()
        self._answered(batch)
        for run in batch.runs:
            key = self._keys.result_prefix + run.id
            ms, envelope = envelopes.get(key, (0, b""))
            args = (GROUP, run.id, -1 if ms is None else ms, envelope)
            self._keep(ScriptSettle(COMPLETE, (run.id,), (self._keys.stream, key), args))

    def _script_answered(self, settle: ScriptSettle, reply: Any) -> None:
        if isinstance(reply, int):
            repeated = self._answered(settle)
            if reply < len(settle) and not repeated:
                lost = b", ".join(settle.entries[:10]).decode()
                log.warning(
                    "%d of these were no longer this worker's: %s", len(settle) - reply, lost
                )
        elif isinstance(reply, ReplyError) and code_of(reply) == "NOSCRIPT":
            self._send(settle, whole=True)
        else:
            self._not_answered(settle, reply)

    def _answered(self, settle: Settle) -> bool:
        """Forgets it; True if the server may have been told of it before."""
        repeated = self._kept.pop(settle, None)
        if repeated is not None:
            self.unanswered -= len(settle)
            self._backoff.reset()
        if not self._kept:
            self._drained.set()
            self._complaints.over()
        self.queue.touch()
        return bool(repeated)

    def _not_answered(self, settle: Settle, reply: Any) -> None:
        if isinstance(reply, ConnectionLost):
            return  # `attach` sends it again
        self._complaints.say(f"The end of a job was refused and is sent again: {reply}")
        if self._connection is not None and wants_reconnect(reply):
            self._connection.fail(ConnectionLost(str(reply)))
            return
        self._refused.append(settle)
        if self._again is None:
            self._again = self._loop.call_later(self._backoff.next_s(), self._send_refused)

    def _send_refused(self) -> None:
        self._again = None
        refused, self._refused = self._refused, []
        for settle in refused:
            self._send(settle)

    def _forget_refused(self) -> None:
        self._refused = []
        if self._again is not None:
            self._again.cancel()
            self._again = None
