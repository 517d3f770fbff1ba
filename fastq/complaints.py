"""Log lines that come once per cause."""

from __future__ import annotations

import logging

_MAX_SAID = 100


class Complaints:
    """Warns of each cause once, until all was well again.

    A server that is away for a night, or refuses thousands of requests, must not fill the disk.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: set[str] = set()
        self._open = False

    def say(self, text: str) -> None:
        """Logs this warning, unless it was said already."""
        if text in self._said:
            return
        if len(self._said) >= _MAX_SAID:
            self._said.clear()
        self._said.add(text)
        self._open = True
        self._log.warning("%s", text)

    def eased(self) -> bool:
        """True once after something was said; what was said stays so until `over`."""
        was_open, self._open = self._open, False
        return was_open

    def over(self) -> None:
        """All is well: the same cause is worth a line when it comes again."""
        self._said.clear()
        self._open = False
