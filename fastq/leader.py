"""The leader: calls the queue's duties while this worker leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from fastq._core import ConnectionLost, ReplyError, pack
from fastq.complaints import Complaints
from fastq.connection import Backoff, CannotConnect, Connection, connect, text_of
from fastq.redis_settings import RedisSettings

log = logging.getLogger("fastq.leader")

_AFTER_A_BUG_S = 5.0
_PING_S = 3.0


class Duty(Protocol):
    """Work that one worker of a queue does for all.

    Atomic and idempotent: two leaders at once do no harm, and one may end between any two commands.
    """

    name: str
    hurries: bool
    """True if a job that is due soon concerns it."""

    async def run(self, connection: Connection) -> float:
        """Does what is to be done now; the seconds after which to call it again."""
        ...


class Leader:
    """Calls duties.

    1. Begins when the heartbeat has won the lead, and ends when it is lost or the session is.
    2. Calls each duty as often as that asks for, and those that hurry when the server says so.
    3. Outlives what a duty raises: it is called again, less often.
    """

    def __init__(self, duties: Sequence[Duty], settings: RedisSettings, channel: bytes) -> None:
        self._duties = duties
        self._settings = settings
        self._channel = channel
        self._tasks: list[asyncio.Task[None]] = []
        self._wakes: list[asyncio.Event] = []

    @property
    def leads(self) -> bool:
        """True while duties are called."""
        return bool(self._tasks)

    def lead(self, connection: Connection) -> None:
        """Begins, if it has not."""
        if self._tasks:
            return
        log.info("This worker leads")
        self._wakes = [asyncio.Event() for _ in self._duties]
        self._tasks = [
            asyncio.ensure_future(self._do(duty, wake, connection))
            for duty, wake in zip(self._duties, self._wakes, strict=True)
        ]
        self._tasks.append(asyncio.ensure_future(self._listen()))

    def step_down(self) -> None:
        """Ends. What a duty has sent, the server does in one piece all the same."""
        for task in self._tasks:
            task.cancel()
        self._tasks = []

    async def _do(self, duty: Duty, wake: asyncio.Event, connection: Connection) -> None:
        complaints, backoff = Complaints(log), Backoff(maximum_s=2.0)
        while True:
            wake.clear()
            try:
                pause_s = await duty.run(connection)
                backoff.reset()
                complaints.over()
            except ConnectionLost:
                return
            except ReplyError as error:
                complaints.say(f"The {duty.name} was refused, trying again: {text_of(error)}")
                pause_s = backoff.next_s()
            except Exception:
                log.exception("The %s failed; it is called again", duty.name)
                pause_s = _AFTER_A_BUG_S
            if not duty.hurries:
                await asyncio.sleep(pause_s)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await wake.wait()

    async def _listen(self) -> None:
        """Hears of jobs that are due before the next look. Without it they are late, not lost."""
        complaints, backoff = Complaints(log), Backoff()
        while True:
            try:
                connection = await connect(
                    self._settings, name="fastq:leader", resp3=True, push=self._pushed
                )
            except CannotConnect as error:
                complaints.say(f"The leader cannot listen, trying again: {error}")
                await asyncio.sleep(backoff.next_s())
                continue
            try:
                # A subscription is answered by a push, so the reply is the ping's.
                await connection.request(pack("SUBSCRIBE", self._channel) + pack("PING"))
                backoff.reset()
                complaints.over()
                # What was said before this is made up for by a look.
                self._wake()
                await self._keep_alive(connection)
            except (ConnectionLost, ReplyError) as error:
                complaints.say(f"The leader hears nothing, jobs may be 1 s late: {error}")
            finally:
                connection.close()
            await asyncio.sleep(backoff.next_s())

    async def _keep_alive(self, connection: Connection) -> None:
        while True:
            # What is said until a lost connection is noticed, nobody hears.
            await asyncio.wait((connection.closed,), timeout=_PING_S)
            await connection.call("PING")

    def _pushed(self, push: list[Any]) -> None:
        if push[0] == b"message" and push[-1] == b"wake":
            self._wake()

    def _wake(self) -> None:
        for wake in self._wakes:
            wake.set()
