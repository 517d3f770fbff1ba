"""What is pending for this worker and will not be run by it: it goes to whoever takes it up."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fastq.connection import Connection
from fastq.keys import GROUP, RELEASED, QueueKeys
from fastq.scripts import HAND_BACK, PAGE_JOBS

log = logging.getLogger("fastq.surplus")


class Surplus:
    """Entries that came after the last one was started, and jobs that did not end in time."""

    def __init__(self, keys: QueueKeys, consumer: str) -> None:
        self._stream = keys.stream
        self._consumer = consumer
        # In their order, each once.
        self._entries: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entries: Iterable[bytes]) -> None:
        """Takes the ids of entries."""
        self._entries.update(dict.fromkeys(entries))

    async def hand_back(self, writer: Connection) -> None:
        """Gives them back, uncharged, under their ids; those that are no longer ours stay."""
        given = list(self._entries)
        for first in range(0, len(given), PAGE_JOBS):
            page = given[first : first + PAGE_JOBS]
            await HAND_BACK.call(writer, (self._stream,), (GROUP, self._consumer, RELEASED, *page))
        if given:
            log.info("%d unfinished jobs were handed back", len(given))
        for entry in given:
            del self._entries[entry]
