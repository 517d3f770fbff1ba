"""The heartbeat: says that this worker lives, and learns the server's time."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from fastq._core import ConnectionLost, ReplyError
from fastq.clock import RedisClock
from fastq.complaints import Complaints
from fastq.connection import Connection
from fastq.keys import QueueKeys
from fastq.scripts import BEAT, Part

log = logging.getLogger("fastq.beats")

BEAT_S = 3.75
"""A beat comes this often; a worker without one for twice as long is not counted on."""
_OUTLIVES_S = 86_400


def consumer_name(token: str) -> str:
    """The name of this process as a consumer: host, pid, and a token that is new in each start."""
    host = "".join(c if c.isprintable() and c not in ' :"' else "_" for c in socket.gethostname())
    return f"{host}:{os.getpid()}:{token}"


class Heart:
    """Beats while there is a connection, and keeps the clock right by the replies."""

    def __init__(
        self,
        keys: QueueKeys,
        consumer: str,
        clock: RedisClock,
        *,
        facts: Callable[[], dict[str, Part]],
        told: Callable[[], object],
    ) -> None:
        self._keys = (keys.beats, keys.consumer_prefix + consumer.encode(), keys.none)
        self._consumer = consumer
        self._clock = clock
        self._facts = facts
        self._told = told

    async def beat(self, connection: Connection) -> None:
        """One beat."""
        fields = [part for pair in self._facts().items() for part in pair]
        time = await BEAT.call(connection, self._keys, (self._consumer, _OUTLIVES_S, *fields))
        self._clock.told(int(time[0]) * 1000 + int(time[1]) / 1000)
        self._told()

    async def run(self, connection: Connection) -> None:
        """Beats for as long as the connection lives; also keeps it from being idle."""
        complaints = Complaints(log)
        while True:
            try:
                await self.beat(connection)
                complaints.over()
            except ConnectionLost:
                return
            except ReplyError as error:
                complaints.say(f"The heartbeat was refused: {error}")
            await asyncio.sleep(BEAT_S)
