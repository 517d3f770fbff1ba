"""The Valkey child of `fastq-worker --embedded` and of `fastqctl demo`.

Nothing here runs per job: it is called before the event loop starts and after it has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from .babysitter import (
    START_S,
    STOP_S,
    Babysitter,
    EmbeddedError,
    call_in_forks,
    find_binary,
    try_lock,
    wait_for_lock,
    write_config,
)
from .errors import ConfigError
from .probe import Found, Record, free_port, loopback_addresses, probe

__all__ = ["EmbeddedError", "EmbeddedServer"]

log = logging.getLogger("fastq.embedded")

# How long a record that does not fit may be the one which a new owner is about to remove.
STALE_S = 1.0


class EmbeddedServer:
    """A Valkey server of this folder or, if `temporary`, of this process alone.

    1. It finds out whether the port and the folder are free, ours or somebody else's.
    2. It starts a server, or joins the one that another worker started in the same folder.
    3. It stops the server if it started it.

    The server ends with its owner, however that ends (SIGKILL too). A joiner leaves the server
    alone, and loses it when the owner ends: its worker then behaves as with any server that went
    away. A process forked from the owner owns nothing.

    `start` and `stop` block; call them outside the event loop, from one thread.
    """

    def __init__(self, host: str, port: int, password: str | None, folder: Path | None) -> None:
        self.host = host
        self.port = port
        self.pid: int | None = None
        self._password = password or None
        self._folder = folder
        self._trash: Path | None = None
        self._child: Babysitter | None = None
        self._lock: int | None = None

    @classmethod
    def for_worker(
        cls, host: str, port: int, password: str | None = None, folder: Path = Path(".fastq")
    ) -> EmbeddedServer:
        """An append-only server with its data, log and record in `folder`.

        ConfigError if `host` is not this machine's loopback (or `0.0.0.0`, `::`) or `port` is none.
        """
        if not 0 < port < 65536:
            raise ConfigError(f"--embedded needs a port from 1 to 65535 in the URL, not {port}")
        loopback_addresses(host)
        return cls(host, port, password, folder)

    @classmethod
    def for_url(cls, url: str, folder: Path = Path(".fastq")) -> EmbeddedServer:
        """`for_worker` by URL. ConfigError if no plain local server can be what it names."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"--embedded: the URL is malformed ({error})") from error
        if parts.scheme != "redis":
            raise ConfigError(
                f"--embedded serves redis:// URLs only, not {parts.scheme}:// (no TLS, no Unix "
                "socket, no Sentinel): change the URL, or leave out --embedded"
            )
        if parts.username not in (None, "", "default"):
            raise ConfigError(
                "--embedded has no users but 'default': leave the name out of the URL"
            )
        host, password = parts.hostname or "localhost", unquote(parts.password or "")
        return cls.for_worker(host, 6379 if port is None else port, password, folder)

    @classmethod
    def temporary(cls) -> EmbeddedServer:
        """A server on a free port that keeps nothing: its folder is removed when it ends."""
        return cls("127.0.0.1", 0, None, None)

    @property
    def owned(self) -> bool:
        """Whether this process started the server, and so will stop it."""
        return self._child is not None

    @property
    def url(self) -> str:
        """Where to connect, with the password. A temporary server has its port after `start`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        secret = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"redis://{secret}{host}:{self.port}/0"

    def __enter__(self) -> EmbeddedServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start or join, and return when the server answers.

        That takes some 0.1 s; 10 s at most for a server that loads much data (it then answers
        LOADING), and 10 s more if the server of a killed owner is slow to end. On EmbeddedError,
        and on KeyboardInterrupt, nothing is left running.
        """
        try:
            if self._folder is None:
                self._start_temporary()
            else:
                self._start_or_join(self._folder.resolve())
        except BaseException as error:
            self.stop()
            if not isinstance(error, OSError):
                raise
            raise EmbeddedError(
                f"cannot run a server in {self._folder or tempfile.gettempdir()} ({error}): start "
                "from a folder that you may write to, or leave out --embedded"
            ) from error

    def stop(self) -> None:
        """Stop the server if it is owned: SIGTERM (which saves), after 10 s SIGKILL.

        Returns when it is gone. May be called twice; does nothing to a server that was joined.
        """
        if self._child is not None:
            if self._folder is not None:
                # First, so that nobody joins a server that is ending.
                with contextlib.suppress(OSError):
                    _record(self._folder).unlink()
            self._child.stop()
            log.info("embedded server at %s:%d stopped", self.host, self.port)
        if self._trash is not None:
            shutil.rmtree(self._trash, ignore_errors=True)
        self._disown()

    def died(self) -> bool:
        """Whether the server is owned and has ended by itself."""
        return self._child is not None and self._child.ended()

    def _disown(self) -> None:
        """Let go of what ends with its last holder. Called in every fork as well."""
        if self._child is not None:
            self._child.let_go()
        if self._lock is not None:
            os.close(self._lock)
        self._child = self._lock = self._trash = self.pid = None

    def _start_temporary(self) -> None:
        binary = find_binary()
        for attempts_left in (2, 1, 0):
            self.port = free_port()
            self._trash = Path(tempfile.mkdtemp(prefix="fastq-"))
            try:
                self._launch(binary, self._trash)
                return
            except EmbeddedError:
                self.stop()
                if not attempts_left:
                    raise

    def _start_or_join(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        asked = time.monotonic()
        while not self._own(folder):
            waited = time.monotonic() - asked
            if self._join(folder, patient=waited < STALE_S):
                return
            if waited > START_S + STOP_S:
                raise EmbeddedError(
                    f"another fastq-worker has been starting or stopping the server in {folder} "
                    f"for {waited:.0f} s: stop it, or start in another folder"
                )
            time.sleep(0.05)

    def _own(self, folder: Path) -> bool:
        """Become the owner and start the server; False if there is an owner.

        The owner's lock is dropped by the kernel when the owner dies, so it also tells a joiner
        that the server which still answers is about to end.
        """
        self._lock = try_lock(folder / "owner.lock")
        if self._lock is None:
            return False
        # It is of a server that has ended, or whose owner has.
        _record(folder).unlink(missing_ok=True)
        busy = wait_for_lock(folder / "server.lock")
        try:
            taken = probe(self.host, self.port, self._password)
            if taken is not None:
                raise EmbeddedError(self._taken_by(taken))
            found = self._launch(find_binary(), folder, inherit=(busy,))
        finally:
            os.close(busy)
        Record(found.pid, found.run_id, self.host, self.port, os.getpid()).write(_record(folder))
        return True

    def _join(self, folder: Path, *, patient: bool) -> bool:
        """Join the recorded server if it is what answers; False if the owner is not that far."""
        record = Record.read(_record(folder))
        if record is None:
            return False
        found = probe(self.host, self.port, self._password)
        if record.fits(found):
            self.pid = record.pid
            log.info("joined the embedded server at %s:%d (pid %d)", self.host, self.port, self.pid)
            return True
        if patient:
            return False
        if found is not None:
            raise EmbeddedError(self._taken_by(found))
        raise EmbeddedError(self._absent(record))

    def _absent(self, record: Record) -> str:
        if record.port == self.port:
            lost = f"has lost its server at {record.host}:{record.port}: stop it first"
        else:
            lost = f"has its server at {record.host}:{record.port}: use that port in the URL"
        return f"this folder's worker (pid {record.owner}) {lost}, or start in another folder"

    def _taken_by(self, found: Found) -> str:
        who = f" (pid {found.pid}, not started by fastq here)" if found.pid else ""
        return (
            f"{self.host}:{self.port} is taken by {found.what}{who}: "
            "stop it, or choose another port in the URL"
        )

    def _launch(self, binary: Path, folder: Path, inherit: tuple[int, ...] = ()) -> Found:
        config = folder / "valkey.conf"
        try:
            write_config(config, self._settings(folder))
            self._child = Babysitter(
                [str(binary), str(config)],
                folder / "server.log",
                trash=self._trash,
                inherit=inherit,
            )
            call_in_forks(self._disown)
            found = self._wait_until_up(self._child)
        finally:
            config.unlink(missing_ok=True)
        self.pid = found.pid
        log.info("%s started at %s:%d (pid %d)", found.what, self.host, self.port, found.pid)
        return found

    def _settings(self, folder: Path) -> dict[str, list[str]]:
        return {
            # "-": an address which this machine lacks (::1 in many containers) is no error.
            "bind": [f"-{address}" for address in loopback_addresses(self.host)],
            "port": [str(self.port)],
            "dir": [str(folder)],
            "save": [""],
            "appendonly": ["no" if self._trash else "yes"],
            "appendfsync": ["everysec"],
            "requirepass": [self._password or ""],
        }

    def _wait_until_up(self, child: Babysitter) -> Found:
        deadline = time.monotonic() + START_S
        while not child.ended():
            late = time.monotonic() > deadline
            found = probe(self.host, self.port, self._password)
            if found is not None and found.pid == child.pid and (late or not found.loading):
                return found
            if late:
                break
            time.sleep(0.01)
        raise EmbeddedError(
            f"the embedded server did not start at {self.host}:{self.port}; the end of its log:\n"
            f"{child.last_words()}"
        )


def _record(folder: Path) -> Path:
    return folder / "server.json"
