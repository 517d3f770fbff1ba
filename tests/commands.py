"""`fastq-worker` and `fastqctl` as processes of their own, as a user starts them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import fastq
from owners import all_gone
from servers import Server
from waiting import eventually_sync

DEADLINE_S = 60
SECRET = "hush/hush"
TESTS = Path(__file__).resolve().parent
SETTINGS = "command_settings:Worker"


class Command:
    """A running command. 1. keeps what it says, 2. signals it, 3. waits for it, 4. cleans up.

    It leads a session, as a command leads its process group in a terminal.
    """

    def __init__(self, folder: Path, *words: str, **environ: str) -> None:
        script, *options = words
        self._output = open(folder / f"output-{len(list(folder.glob('output-*')))}", "w+b")  # noqa: SIM115
        self.process = subprocess.Popen(
            [Path(sys.executable).with_name(script), *options],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
            env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(folder), **environ},
            start_new_session=True,
        )

    @property
    def text(self) -> str:
        """All that it has said. Never a password, whatever else it says."""
        said = Path(self._output.name).read_text(errors="replace")
        assert "hush" not in said
        return said

    def says(self, text: str) -> None:
        """Returns once it has."""

        def said() -> bool:
            assert self.process.poll() is None or text in self.text, self.text
            return text in self.text

        eventually_sync(said, DEADLINE_S)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self, *, traceback: bool = False) -> int:
        """Its exit code. What it has said holds no traceback, unless a job's own is expected."""
        code = self.process.wait(DEADLINE_S)
        assert ("Traceback" in self.text) is traceback, self.text
        return code

    def stops(self) -> int:
        """Its exit code after a SIGTERM."""
        self.send(signal.SIGTERM)
        return self.ends()

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._output.close()


@contextmanager
def commands(folder: Path) -> Iterator[Callable[..., Command]]:
    """A function that starts commands, all of which end with the context."""
    started: list[Command] = []

    def start(*words: str, **environ: str) -> Command:
        started.append(Command(folder, *words, **environ))
        return started[-1]

    try:
        yield start
    finally:
        for command in started:
            command.close()


def url_of(server: Server) -> str:
    """The server's URL with a password, which one without passwords takes as well."""
    return url_at(server.port)


def url_at(port: int) -> str:
    return f"redis://default:{SECRET.replace('/', '%2F')}@127.0.0.1:{port}/0"


def enqueue(url: str, name: str, *args: Any, queue: str = "default") -> str:
    """The id of the job."""

    async def run() -> str:
        async with fastq.Client(url, queue=queue) as client:
            return (await client.enqueue(name, *args)).id

    return asyncio.run(run())


def result(url: str, job_id: str, queue: str = "default") -> Any:
    async def run() -> Any:
        async with fastq.Client(url, queue=queue) as client:
            return await client.job(job_id).result(timeout=DEADLINE_S)

    return asyncio.run(run())


def status(url: str, job_id: str) -> str:
    async def run() -> str:
        async with fastq.Client(url) as client:
            return str(await client.job(job_id).status())

    return asyncio.run(run())


def gone(processes: list[psutil.Process]) -> None:
    """Returns once none of them is left."""
    assert processes
    eventually_sync(lambda: all_gone(processes), DEADLINE_S)
