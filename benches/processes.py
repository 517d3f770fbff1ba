"""Worker processes for the benches: started, watched until they read, ended whatever happens."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from measured import MeasuredServer

HERE = Path(__file__).resolve().parent
READY_TIMEOUT_S = 120
STOP_TIMEOUT_S = 30
PRODUCE_TIMEOUT_S = 300


@dataclass(frozen=True)
class Side:
    """One fastq to measure: an interpreter that has it installed.

    The folder of `benches/` is the same for all sides, so that the workload is too.
    """

    # Not resolved: the link in a virtual environment is what makes it one.
    python: Path = field(default_factory=lambda: Path(sys.executable))

    def worker(self, *options: str) -> list[str]:
        return [self.command("fastq-worker"), "benches.workload:Worker", *options]

    def command(self, name: str) -> str:
        return str(self.python.parent / name)

    def produce(
        self, server: MeasuredServer, jobs: int, concurrent: int = 0, due_in_s: float = 0
    ) -> dict[str, Any]:
        words = ["--url", server.url(), "--jobs", str(jobs), "--concurrent", str(concurrent)]
        # Only if asked for: the side may be a fastq whose jobs cannot be deferred.
        words += ["--due-in", str(due_in_s)] if due_in_s else []
        return run_json([str(self.python), str(HERE / "producer.py"), *words])


def run_json(command: Sequence[str]) -> dict[str, Any]:
    """Run a program of the benches to its end and parse the last line it prints."""
    ran = subprocess.run(
        command, cwd=HERE.parent, capture_output=True, text=True, timeout=PRODUCE_TIMEOUT_S
    )
    if ran.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ran.stderr[-2_000:]}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


_PRCTL = getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


def _end_with_owner() -> None:
    # A worker outlives its server by design, so a bench that was killed would leave it running for
    # ever. In a child between fork and exec; a preexec_fn is safe here, benches have no threads.
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Workers:
    """`count` processes of one command. What they print is kept for the error message."""

    def __init__(self, command: Sequence[str], server: MeasuredServer, count: int = 1) -> None:
        self._command = command
        self._server = server
        self._count = count
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        self._output = tempfile.TemporaryFile()
        environment = {**os.environ, "FASTQ_REDIS_URL": self._server.url()}
        for _ in range(self._count):
            self.processes.append(
                subprocess.Popen(
                    self._command,
                    cwd=HERE.parent,
                    env=environment,
                    stdout=self._output,
                    stderr=subprocess.STDOUT,
                    preexec_fn=_end_with_owner,
                )
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._output.close()

    def wait_until_reading(self, command: str) -> None:
        """Until as many connections as processes were seen whose last command is `command`."""
        pattern = re.compile(rf"addr=(\S+) .*cmd={command}\b".encode())
        seen: set[bytes] = set()
        deadline = time.monotonic() + READY_TIMEOUT_S
        while len(seen) < self._count:
            self.check_alive()
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(seen)} of {self._count} workers read: {self.output()}")
            time.sleep(0.05)
            seen.update(pattern.findall(self._server.wire.call("CLIENT", "LIST")))

    def wait_for_exit(self) -> None:
        for process in self.processes:
            if code := process.wait(STOP_TIMEOUT_S):
                raise SystemExit(f"a worker exited with {code}: {self.output()}")

    def check_alive(self) -> None:
        for process in self.processes:
            if process.poll():
                raise SystemExit(f"a worker exited with {process.returncode}: {self.output()}")

    def output(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")[-2_000:]
