"""The heartbeat: says that this worker lives, stands for election, and learns the server's time."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import random
import socket
from collections.abc import Callable
from typing import NamedTuple

from fastq._core import ConnectionLost, ReplyError
from fastq.clock import RedisClock
from fastq.complaints import Complaints
from fastq.connection import Connection, named
from fastq.keys import QueueKeys
from fastq.scripts import TICK, Part

log = logging.getLogger("fastq.beats")

BEAT_S = 3.75
"""A beat comes this often; a worker without one for twice as long is not counted on."""
_OUTLIVES_S = 86_400
LEAD_S = 3.0
"""Who leads and is not heard of for so long leads no more."""
# Of few workers each beats once a second, so that a new leader is there soon; of many, together
# about as often as the server need be asked whether there is one.
_SOON_S = 1.0
_BEATS_A_SECOND = 4


class Beat(NamedTuple):
    """What the server says to a beat."""

    leads: bool
    left_ms: int
    """How long the leader still leads, if it is not heard of."""
    living: int
    """How many workers there are."""

    def pause_s(self) -> float:
        """How long to wait before the next one."""
        if self.leads:
            return LEAD_S / 3
        pause_s = min(BEAT_S, max(_SOON_S, self.living / _BEATS_A_SECOND))
        if 0 < self.left_ms < pause_s * 1000:
            # Nobody else is to wait for: the lead falls vacant at that moment.
            return self.left_ms / 1000 + random.uniform(0.005, 0.05)
        return pause_s


def consumer_name(token: str) -> str:
    """The name of this process as a consumer: host, pid, and a token that is new in each start."""
    host = "".join(c if c.isprintable() and c not in ' :"' else "_" for c in socket.gethostname())
    return f"{host}:{os.getpid()}:{token}"


def who() -> dict[str, Part]:
    """What a consumer says of the process behind it."""
    version = importlib.metadata.version("fastq-worker")
    return {"host": socket.gethostname(), "pid": os.getpid(), "version": version}


class Heart:
    """Beats while there is a connection, and keeps the clock right by the replies."""

    def __init__(
        self,
        keys: QueueKeys,
        consumer: str,
        clock: RedisClock,
        *,
        facts: Callable[[], dict[str, Part]],
        told: Callable[[Beat], object],
    ) -> None:
        hash_key = keys.consumer_prefix + consumer.encode()
        self._keys = (keys.beats, hash_key, keys.leader, keys.none)
        self._consumer = consumer
        self._clock = clock
        self._facts = facts
        self._told = told

    async def beat(self, connection: Connection) -> Beat:
        """One beat."""
        fields = [part for pair in self._facts().items() for part in pair]
        times = (_OUTLIVES_S, int(2000 * BEAT_S), int(1000 * LEAD_S))
        try:
            reply = await TICK.call(connection, self._keys, (self._consumer, *times, *fields))
        except ReplyError as error:
            raise named(error, self._keys) from error
        self._clock.told(int(reply[0]) * 1000 + int(reply[1]) / 1000)
        beat = Beat(bool(reply[2]), reply[3], reply[4])
        self._told(beat)
        return beat

    async def run(self, connection: Connection) -> None:
        """Beats for as long as the connection lives; also keeps it from being idle."""
        complaints = Complaints(log)
        pause_s = _SOON_S
        while True:
            try:
                pause_s = (await self.beat(connection)).pause_s()
                complaints.over()
            except ConnectionLost:
                return
            except ReplyError as error:
                complaints.say(f"The heartbeat was refused: {error}")
            await asyncio.sleep(pause_s)
