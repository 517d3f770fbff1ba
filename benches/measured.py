"""The tests' servers, with what a bench needs: CPU time, version, and a cheap connection."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

# At the end of the path: nothing of the tests may stand in for something installed.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from servers import DEFAULT, NAMES, Server
from wire import Wire

__all__ = ["DEFAULT", "NAMES", "MeasuredServer", "cpu_seconds"]


class MeasuredServer(Server):
    """A server of our own, ended when its `with` block is left."""

    def start(self) -> None:
        super().start()
        self.wire = Wire(self.port)
        self.version = version_in(self.wire.call("INFO", "server"))

    def kill(self) -> None:
        self.wire.close()
        super().kill()

    def cpu_s(self) -> float:
        """CPU seconds of the whole process, user and system, its helper threads included."""
        return cpu_seconds(self.wire.call("INFO", "cpu"))

    def wait_until_empty(self) -> None:
        """Until no job is in the stream any more."""
        while self.wire.call("XLEN", "{fastq:default}:stream"):
            time.sleep(0.005)

    def empty(self) -> None:
        # SYNC, or a helper thread would free the last round's keys during the next round.
        self.wire.call("FLUSHALL", "SYNC")


def version_in(info: bytes) -> str:
    """`Valkey 9.1.2` or `Redis 7.0.15`; Valkey also names a Redis version, for old clients."""
    for kind in ("valkey", "redis"):
        if found := re.search(rf"^{kind}_version:(\S+)".encode(), info, re.MULTILINE):
            return f"{kind.capitalize()} {found[1].decode()}"
    return "unknown server"


def cpu_seconds(info: bytes) -> float:
    """From the reply to `INFO cpu`."""
    found = re.findall(rb"^used_cpu_(?:user|sys):([\d.]+)", info, re.MULTILINE)
    return sum(float(value) for value in found)
