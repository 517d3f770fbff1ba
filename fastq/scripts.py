"""The atomic moves: the Lua scripts of `lua/`, called by their SHA1, sent whole where unknown."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from fastq._core import ReplyError, pack
from fastq.connection import Connection, code_of

Part = bytes | str | int
# What one script may do at the most: the server does nothing else meanwhile.
PAGE_JOBS = 250
PAGE_BYTES = 1024 * 1024


class Script:
    """One script. Its first comment says whether it may be sent again after a lost connection.

    `moves`: it uses what is shared by the scripts that move jobs with a record.
    """

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str, *, moves: bool = False) -> None:
        self.name = name
        self.source = _read("moves") + _read(name) if moves else _read(name)
        self.sha = hashlib.sha1(self.source, usedforsecurity=False).hexdigest()

    def pack(self, keys: Sequence[bytes], args: Sequence[Part], *, whole: bool = False) -> bytes:
        """The call as RESP: EVALSHA, or EVAL (which also loads it) where `whole`."""
        how: tuple[Part, Part] = ("EVAL", self.source) if whole else ("EVALSHA", self.sha)
        return pack(*how, len(keys), *keys, *args)

    async def call(
        self, connection: Connection, keys: Sequence[bytes], args: Sequence[Part] = ()
    ) -> Any:
        """Runs the script; loads it if the server has lost it (a restart, SCRIPT FLUSH)."""
        try:
            return await connection.request(self.pack(keys, args))
        except ReplyError as error:
            if code_of(error) != "NOSCRIPT":
                raise
        return await connection.request(self.pack(keys, args, whole=True))


def cap_of(keep_dead: tuple[int, float | None]) -> tuple[int, int]:
    """How scripts are told how many dead jobs are kept, and for how many ms (0: for ever)."""
    most, age_s = keep_dead
    return most, 0 if age_s is None else max(1, int(age_s * 1000))


def _read(name: str) -> bytes:
    return (files("fastq") / "lua" / f"{name}.lua").read_bytes()


BURY = Script("bury", moves=True)
COMPLETE = Script("complete")
CRON = Script("cron", moves=True)
ENQUEUE = Script("enqueue", moves=True)
FINISH = Script("finish", moves=True)
HAND_BACK = Script("hand_back")
LEAVE = Script("leave")
OWN_PENDING = Script("own_pending")
PROMOTE = Script("promote", moves=True)
RETRY = Script("retry", moves=True)
STATUS = Script("status")
TICK = Script("tick")
TRIM = Script("trim", moves=True)
