"""The worker process of `fastqctl demo`, seen from the demo. Its other end is `demo_jobs`."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import click

_STOP_S = 10.0
_TAIL_LINES = 5
# Not by the script's path: fastq may be installed without it being on PATH. With -P: a folder
# named fastq where the demo is started must not stand in for what is installed.
_COMMAND = [
    sys.executable,
    "-P",
    "-c",
    "from fastq.cli import main; main(prog_name='fastq-worker')",
]


class DemoFailed(click.ClickException):
    """The demo did not come to its end. The message says why."""

    exit_code = 1


class WorkerProcess:
    """A `fastq-worker` with the settings of `demo_jobs`.

    It ends when its standard input does, so whatever ends the demo ends it too. A session of its
    own keeps the terminal's Ctrl-C from it: the demo is asked, and stops it in order.
    """

    def __init__(self, url: str, max_jobs: int) -> None:
        words = ["fastq.demo_jobs:Worker", "--redis", url, "--max-jobs", str(max_jobs)]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(
            [*_COMMAND, *words],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def check(self) -> None:
        """`DemoFailed`, with the end of its log, if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise DemoFailed(
                f"the worker ended (exit code {code}); the end of its log:\n{self._tail()}"
            )

    def stop(self) -> None:
        """Returns when the process is gone: at once as a rule, killed after 10 s."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _tail(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-_TAIL_LINES:])
