"""Processes that own an embedded server, and what to ask of the processes that come with it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import redis

from fastq.probe import probe

DEADLINE_S = 30

OWNER = """
import json, os, signal, sys, time
from fastq.embedded import EmbeddedError, EmbeddedServer

mode, port, password = sys.argv[1:]
signal.signal(signal.SIGINT, lambda *_: print("interrupted", flush=True))
if mode == "temporary":
    server = EmbeddedServer.temporary()
else:
    server = EmbeddedServer.for_worker("127.0.0.1", int(port), password)
try:
    server.start()
except EmbeddedError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit(2)
said = {"url": server.url, "pid": server.pid, "owned": server.owned}
if mode == "fork":
    said["fork"] = os.fork()
    if not said["fork"]:
        signal.pause()
print(json.dumps(said), flush=True)
sys.stdin.read()
server.stop()
"""


class Owner:
    """A process that starts an embedded server, and stops it when told to."""

    def __init__(self, folder: Path, port: int, mode: str, password: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, mode, str(port), password],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        self._said: dict[str, Any] = {}

    @property
    def said(self) -> dict[str, Any]:
        if not self._said:
            self._said = json.loads(self.read())
        return self._said

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_S)

    def close(self) -> None:
        self.kill()
        if fork := self._said.get("fork"):
            os.kill(fork, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def household(pid: int) -> list[psutil.Process]:
    """The server, its babysitter and whatever else came with them."""
    group = os.getpgid(pid)
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group:
                found.append(process)
        except (ProcessLookupError, PermissionError):
            continue
    assert len(found) >= 3
    assert os.getpid() not in [process.pid for process in found]
    return found


def all_gone(processes: list[psutil.Process]) -> bool:
    return not any(is_alive(process) for process in processes)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def ping(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        return bool(client.ping())


def answering_pid(port: int) -> int:
    found = probe("127.0.0.1", port)
    return found.pid if found else 0
