"""The janitor: sweeps up what has grown old."""

from __future__ import annotations

import logging

from fastq.connection import Connection
from fastq.keys import QueueKeys
from fastq.scripts import TRIM, cap_of

log = logging.getLogger("fastq.janitor")

_EVERY_S = 60.0


class Janitor:
    """Drops dead jobs that are past their age, also where none is buried any more."""

    name = "janitor"
    hurries = False

    def __init__(self, keys: QueueKeys, keep_dead: tuple[int, float | None]) -> None:
        self._keys = (keys.dead, keys.meta)
        self._args = cap_of(keep_dead)
        self._queue = keys.name

    async def run(self, connection: Connection) -> float:
        """One round."""
        dropped: int = await TRIM.call(connection, self._keys, self._args)
        if dropped:
            log.warning(
                "%d jobs of queue %r that ended badly were dropped: keep_dead keeps no more",
                dropped,
                self._queue,
            )
        return _EVERY_S
