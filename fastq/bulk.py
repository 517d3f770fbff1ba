"""`enqueue_many`: jobs in batches, a few of them under way at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from fastq._core import ConnectionLost, NotSent, ReplyError
from fastq.connection import code_of
from fastq.errors import EnqueueError, EnqueueUncertain, FastqError, sentence
from fastq.functions import Call
from fastq.jobs import Job

if TYPE_CHECKING:
    from fastq.client import Client
    from fastq.keys import QueueKeys
    from fastq.producer import Recorded

_BATCH_JOBS = 500
_BATCH_BYTES = 256 * 1024
# One batch at the server, one on the way, one being packed.
_UNDER_WAY = 2


class _Batch(NamedTuple):
    first: int
    functions: list[Any]
    recorded: dict[int, Recorded]  # by their places in the batch
    replies: asyncio.Future[list[Any]]


class Bulk:
    """One `enqueue_many`.

    1. Packs calls into batches and keeps a few under way.
    2. Turns replies into handles, in order.
    3. After a lost connection sends those again that have a record.
    4. At an error sends no more, waits for what is under way, and says how far it came.
    """

    def __init__(
        self,
        client: Client,
        keys: QueueKeys,
        pack: Callable[[Call[Any]], bytes | Recorded],
        *,
        handles: bool,
    ) -> None:
        self.jobs: list[Job[Any]] = []
        self.enqueued = 0
        self._client = client
        self._keys = keys
        self._pack = pack
        self._handles = handles
        self._next = 0
        self._packed: list[bytes] = []
        self._functions: list[Any] = []
        self._recorded: dict[int, Recorded] = {}
        self._size = 0
        self._under_way: deque[_Batch] = deque()
        self._error: FastqError | None = None

    async def run(self, calls: Iterable[Call[Any]]) -> None:
        """Enqueues them all, or raises what stopped it."""
        self._client._check_home()
        try:
            await self._run(calls)
        finally:
            # Of a caller that was cancelled: nobody will look at these, whatever comes.
            for batch in self._under_way:
                batch.replies.cancel()

    async def _run(self, calls: Iterable[Call[Any]]) -> None:
        try:
            for call in calls:
                self._add(call)
                if len(self._packed) >= _BATCH_JOBS or self._size >= _BATCH_BYTES:
                    await self._ship()
        except Exception as error:
            if error is not self._error:
                await self._stopped(error)
            raise
        await self._ship()
        await self._settle(0)

    def _add(self, call: Call[Any]) -> None:
        packed = self._pack(call)
        if not isinstance(packed, bytes):
            # The first of a batch brings the script along: the others can then rely on it.
            whole = not self._recorded
            self._recorded[len(self._packed)] = packed
            packed = packed.pack(whole=whole)
        self._packed.append(packed)
        self._functions.append(getattr(call, "fn", None))
        self._size += len(packed)

    async def _ship(self) -> None:
        if not self._packed:
            return
        packed, functions = b"".join(self._packed), self._functions
        recorded, self._recorded = self._recorded, {}
        first, self._next = self._next, self._next + len(functions)
        self._packed, self._functions, self._size = [], [], 0
        try:
            connection = await self._client._ready(self._keys)
        except FastqError as error:
            await self._fail(first, error)
            return
        replies = connection.request(packed, len(functions))
        connection.flush()
        self._under_way.append(_Batch(first, functions, recorded, replies))
        await self._settle(_UNDER_WAY)

    async def _settle(self, leave: int) -> None:
        """Waits until at most `leave` batches are under way; raises what went wrong in them."""
        while len(self._under_way) > leave:
            batch = self._under_way.popleft()
            lost: FastqError | None = None
            try:
                replies = await batch.replies
            except ConnectionLost as error:
                replies = list(getattr(error, "replies", []))
                lost = await self._send_rest(batch, replies, error)
            await self._send_refused(batch, replies)
            refused = self._take(batch, replies)
            if refused is not None:
                index, reply = refused
                recorded = index in batch.recorded
                why = self._client._refused(reply, recorded=recorded)
                await self._fail(batch.first + index, why)
            elif lost is not None:
                await self._fail(batch.first + len(replies), lost)

    async def _send_rest(
        self, batch: _Batch, replies: list[Any], error: ConnectionLost
    ) -> FastqError | None:
        """Sends again what may be, up to the first job that may not; the error if there is one."""
        while len(replies) < len(batch.functions):
            recorded = batch.recorded.get(len(replies))
            if recorded is None:
                return _lost(error)
            try:
                again = self._client._submit_recorded(
                    self._keys, recorded, lost=not isinstance(error, NotSent)
                )
                replies.append(await again)
            except FastqError as failed:
                return failed
        return None

    async def _send_refused(self, batch: _Batch, replies: list[Any]) -> None:
        """Sends again what the server did not do because it had lost the script meanwhile."""
        for index in range(len(replies)):
            reply = replies[index]
            if isinstance(reply, ReplyError) and code_of(reply) == "NOSCRIPT":
                # If it fails again, that reply stands for it.
                with contextlib.suppress(FastqError):
                    replies[index] = await self._client._submit_recorded(
                        self._keys, batch.recorded[index]
                    )

    def _take(self, batch: _Batch, replies: list[Any]) -> tuple[int, ReplyError] | None:
        """Books the replies; returns the first that is an error, with its place in the batch."""
        refused = None
        for index, reply in enumerate(replies):
            if isinstance(reply, ReplyError):
                refused = refused or (index, reply)
                continue
            self.enqueued += 1
            if self._handles:
                self.jobs.append(self._handle(batch, index, reply))
        return refused

    def _handle(self, batch: _Batch, index: int, reply: Any) -> Job[Any]:
        recorded = batch.recorded.get(index)
        if recorded is not None:
            return recorded.handle(self._client, self._keys, batch.functions[index], reply)
        return Job(self._client, self._keys, reply.decode(), batch.functions[index])

    async def _fail(self, index: int, error: FastqError) -> None:
        """The first error decides; what is under way behind it is still counted."""
        if self._error is not None:
            return
        self._error = error
        await self._settle(0)
        error.args = (f"enqueue_many: call {index}: {sentence(error)} {self._so_far()}",)
        if isinstance(error, EnqueueError | EnqueueUncertain):
            error.enqueued = self.enqueued
        raise error

    async def _stopped(self, error: Exception) -> None:
        """The iterable or one of its calls is at fault: all before it goes out first."""
        index = self._next + len(self._packed)
        await self._ship()
        await self._settle(0)
        if isinstance(error, FastqError | TypeError) and len(error.args) == 1:
            error.args = (f"enqueue_many: call {index}: {sentence(error)} {self._so_far()}",)
        else:
            error.add_note(f"enqueue_many stopped at call {index}. {self._so_far()}")

    def _so_far(self) -> str:
        if self.enqueued == 1:
            return "1 job was enqueued."
        return f"{self.enqueued} jobs were enqueued."


def _lost(error: ConnectionLost) -> FastqError:
    if isinstance(error, NotSent):
        return EnqueueError(f"{error}; this call and those after it were not sent.")
    return EnqueueUncertain(f"{error}; the replies were lost, so it and some after it may run.")
