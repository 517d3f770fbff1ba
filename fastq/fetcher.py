"""The reader loop: free slots become one XREADGROUP, its reply becomes running jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from fastq._core import ConnectionLost, ReplyError, RunningSet, pack
from fastq.clock import mono_s
from fastq.complaints import Complaints
from fastq.connection import Backoff, Connection, code_of, wants_reconnect
from fastq.keys import GROUP, QUEUES, QueueKeys

log = logging.getLogger("fastq.fetcher")

BLOCK_S = 5.0
"""How long the server may hold a read. Finite: some servers forget a blocked client's time-out."""
_BURST_BLOCK_S = 0.1
_MAX_READ_BYTES = 8 * 1024 * 1024


def create_group(keys: QueueKeys) -> bytes:
    """Creates stream and group. From id 0: jobs may have been queued before the first worker."""
    return pack(b"XGROUP", b"CREATE", keys.stream, GROUP, b"0", b"MKSTREAM")


async def ensure_group(connection: Connection, keys: QueueKeys) -> None:
    """Creates the group if it is missing, and lists the queue."""
    replies: tuple[Any, Any] = await asyncio.gather(
        connection.request(create_group(keys)),
        connection.call(b"SADD", QUEUES, keys.name),
        return_exceptions=True,
    )
    created, listed = replies
    # A full server (OOM) refuses both, but the jobs that it holds can run, which makes room.
    if isinstance(created, BaseException) and code_of(created) not in ("BUSYGROUP", "OOM"):
        raise explained(created, keys)
    if isinstance(listed, ReplyError) and code_of(listed) != "OOM":
        # The list of queues is for people to look at; jobs run without it.
        log.warning("Queue %r cannot be added to %s: %s", keys.name, QUEUES.decode(), listed)


def explained(error: BaseException, keys: QueueKeys) -> BaseException:
    """The error, with the key's name where that is what has to be known."""
    if code_of(error) != "WRONGTYPE":
        return error
    key = keys.stream.decode()
    return ReplyError(f"{error}. The key {key} must be a stream: something else made it.")


class Fetcher:
    """Reads entries for the free slots, and for these only: a worker holds no job it does not run.

    1. Keeps one XREADGROUP outstanding while a slot is free, never one a slot: every XADD wakes
       every blocked reader.
    2. Starts what comes; after `stop` it gives it to `surplus` instead.
    3. Creates the group again where it vanished, and waits where the server refuses.
    4. In a burst, calls `idle` when there is nothing left to run; whoever that is wakes it again.
    """

    def __init__(
        self,
        keys: QueueKeys,
        consumer: str,
        running: RunningSet,
        *,
        watch: Callable[[], object],
        unanswered: Callable[[], int],
        surplus: Callable[[list[bytes]], object],
        idle: Callable[[], object] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._keys = keys
        self._consumer = consumer
        self._running = running
        self._watch = watch
        self._unanswered = unanswered
        self._surplus = surplus
        self._idle = idle
        self.delivered = 0
        self._connection: Connection | None = None
        self._reading: Connection | None = None
        self._stopped = False
        self._backoff = Backoff(maximum_s=2.0)
        self._pause: asyncio.TimerHandle | None = None
        self._packed: dict[tuple[int, int], bytes] = {}
        self._heard_s = mono_s()
        self._complaints = Complaints(log)

    @property
    def reading(self) -> bool:
        """True while a read has not been answered."""
        return self._reading is not None

    @property
    def healthy(self) -> bool:
        """True if it reads, or has no slot to read for."""
        if self._connection is None:
            return False
        return self._running.free <= 0 or mono_s() - self._heard_s < 2 * BLOCK_S

    def attach(self, connection: Connection) -> None:
        """Reads on this connection from now on."""
        self._connection = connection
        self._heard_s = mono_s()
        self.wake()

    def detach(self) -> None:
        """Reads no more until there is another connection."""
        self._connection = self._reading = None
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def stop(self) -> None:
        """Starts no job from now on, for good."""
        self._stopped = True

    def wake(self) -> None:
        """A slot may be free, or a settle answered: reads if that is so."""
        connection = self._connection
        if connection is None or self._reading or self._stopped or self._pause is not None:
            return
        count = self._wanted()
        if count <= 0:
            return
        self._reading = connection
        connection.call_back(self._read(count), self._answered)
        # Not with the rest of the turn: the sooner the server has it, the sooner there are jobs.
        connection.flush()

    def start(self, entries: list[Any]) -> None:
        """Starts the entries of a reply (or those of a lost one that were found again)."""
        deleted = self._running.start(entries)
        self._started()
        if deleted and self._connection is not None:
            self._connection.call(b"XACK", self._keys.stream, GROUP, *deleted)

    def _start_waiting(self) -> None:
        self._running.start_waiting()
        self._started()

    def _started(self) -> None:
        if self._running.waits:
            self._loop.call_soon(self._start_waiting)
        # Eager tasks may have ended by now.
        if len(self._running):
            self._watch()

    def _wanted(self) -> int:
        # Settles that the server does not answer pile up in memory: no more jobs until it does.
        if self._unanswered() > self._running.max_jobs:
            return 0
        most = int(_MAX_READ_BYTES / max(self._running.mean_payload, 1.0))
        return min(self._running.free, max(most, 1))

    def _read(self, count: int) -> bytes:
        block_ms = self._block_ms()
        packed = self._packed.get((count, block_ms))
        if packed is None:
            if len(self._packed) > 1_000:
                self._packed.clear()
            block = (b"BLOCK", block_ms) if block_ms else ()
            packed = self._packed[count, block_ms] = pack(
                b"XREADGROUP", b"GROUP", GROUP, self._consumer, b"COUNT", count, *block,
                b"STREAMS", self._keys.stream, b">",
            )  # fmt: skip
        return packed

    def _block_ms(self) -> int:
        if self._idle is None:
            return int(BLOCK_S * 1000)
        # The last jobs of a burst may enqueue more; when none runs, an empty queue is the end.
        going = len(self._running) or self._unanswered()
        return int(_BURST_BLOCK_S * 1000) if going else 0

    def _answered(self, reply: Any) -> None:
        if isinstance(reply, ConnectionLost):
            self._reading = None
            return
        self._reading = None
        self._heard_s = mono_s()
        if isinstance(reply, ReplyError):
            self._refused(reply)
            return
        self._backoff.reset()
        self._complaints.over()
        if reply:
            self.deliver(reply[0][1])
        elif self._idle is not None and not len(self._running) and not self._unanswered():
            self._idle()
            return
        self.wake()

    def deliver(self, entries: list[Any]) -> None:
        """Starts entries that were delivered to this consumer, or gives them to `surplus`."""
        self.delivered += len(entries)
        if self._stopped:
            self._surplus([entry[0] for entry in entries])
        else:
            self.start(entries)

    def _refused(self, error: ReplyError) -> None:
        connection = self._connection
        if connection is None:
            return
        # UNBLOCKED comes when the key was deleted (up to 7.0) and when the server changes its role.
        if wants_reconnect(error):
            connection.fail(ConnectionLost(str(error)))
            return
        if code_of(error) == "NOGROUP":
            self._complaints.say("The consumer group is gone (FLUSHALL?); it is created anew")
            connection.call_back(create_group(self._keys), lambda reply: None)
        else:
            why = explained(error, self._keys)
            self._complaints.say(f"Queue {self._keys.name!r} cannot be read, trying again: {why}")
        self._pause = self._loop.call_later(self._backoff.next_s(), self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self.wake()
