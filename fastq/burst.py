"""A burst: when a worker that is to end with its queue is at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fastq._core import ConnectionLost, ReplyError
from fastq.connection import Connection
from fastq.keys import QueueKeys
from fastq.promoter import Promoter

_ASK_AGAIN_S = 0.1


class Burst:
    """Asked when a read was empty and nothing runs.

    1. Promotes what is due: that is still to be run.
    2. Waits for the retries of jobs that this process has run; other deferred jobs do not hold it.
    3. Stops once a read after all that was empty, too.
    """

    def __init__(
        self,
        keys: QueueKeys,
        promoter: Promoter,
        retried: set[bytes],
        *,
        writer: Callable[[], Connection | None],
        delivered: Callable[[], int],
        read: Callable[[], object],
        stop: Callable[[], object],
    ) -> None:
        self._keys = keys
        self._promoter = promoter
        self._retried = retried
        self._writer = writer
        self._delivered = delivered
        self._read = read
        self._stop = stop
        self._sure = -1
        self._asking: asyncio.Task[None] | None = None

    def idle(self) -> None:
        """There was nothing to read; reading goes on by `read`, unless this is the end."""
        if self._sure == self._delivered():
            self._stop()
        elif self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())

    async def _ask(self) -> None:
        delivered = self._delivered()
        try:
            if await self._is_over():
                self._sure = delivered
            elif self._retried:
                await asyncio.sleep(_ASK_AGAIN_S)
        except (ConnectionLost, ReplyError):
            await asyncio.sleep(_ASK_AGAIN_S)
        finally:
            self._asking = None
        self._read()

    async def _is_over(self) -> bool:
        connection = self._writer()
        if connection is None:
            raise ConnectionLost("there is no connection")
        moved, _, _ = await self._promoter.promote(connection)
        if moved:
            return False
        if self._retried:
            asked = list(self._retried)
            scores = await connection.call("ZMSCORE", self._keys.deferred, *asked)
            self._retried -= {j for j, s in zip(asked, scores, strict=True) if s is None}
        return not self._retried
