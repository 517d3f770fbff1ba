"""Who serves an address of this machine: asking the port, and the record of what was started."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import ConfigError

PROBE_S = 2.0


@dataclass(frozen=True)
class Found:
    """What answers at a port. `pid` 0: it does not show who it is, so it is never joined."""

    what: str
    pid: int = 0
    run_id: str = ""
    loading: bool = False


@dataclass(frozen=True)
class Record:
    """The server that runs in a folder. Only a server that shows this pid and run id is joined."""

    pid: int
    run_id: str
    host: str
    port: int
    owner: int

    @classmethod
    def read(cls, path: Path) -> Record | None:
        """The record at `path`; None if there is none, or not one of ours."""
        try:
            return cls(**json.loads(path.read_text()))
        except (FileNotFoundError, TypeError, ValueError):
            return None

    def fits(self, found: Found | None) -> bool:
        """Whether `found` is the recorded server, not a later one with a recycled pid."""
        return found is not None and (found.pid, found.run_id) == (self.pid, self.run_id)

    def write(self, path: Path) -> None:
        """Replace the file at once: a joiner never reads half a record."""
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(self)))
        fresh.replace(path)


def probe(host: str, port: int, password: str | None = None) -> Found | None:
    """What answers at `host:port`, within about 2 s; None if nothing listens."""
    try:
        with socket.create_connection((host, port), timeout=PROBE_S) as sock:
            # TCP may connect an ephemeral port to itself.
            if sock.getsockname() == sock.getpeername():
                return None
            sock.sendall(_question(password))
            return _identify(_read_to_end(sock))
    except TimeoutError:
        return Found("something that does not answer as Redis does")
    except ConnectionResetError:
        return Found("something that does not speak Redis")
    except OSError:
        return None


def _question(password: str | None) -> bytes:
    words = [b"INFO", b"QUIT"]
    parts = [b"*1\r\n$%d\r\n%b\r\n" % (len(word), word) for word in words]
    if password:
        secret = password.encode("utf-8", "surrogateescape")
        parts.insert(0, b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%b\r\n" % (len(secret), secret))
    return b"".join(parts)


def _read_to_end(sock: socket.socket) -> bytes:
    """The answers until QUIT's closes the connection; at most 2 s and 1 MiB."""
    deadline = time.monotonic() + PROBE_S
    data = b""
    while len(data) < 1 << 20:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = sock.recv(1 << 16)
        if not chunk:
            break
        data += chunk
    return data


def _identify(answer: bytes) -> Found:
    lines = answer.decode("utf-8", "replace").split("\r\n")
    if lines[0].startswith("-"):
        return Found(f"a Redis or Valkey that says {lines[0][1:]!r}")
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    if "redis_version" not in info:
        return Found("something that does not speak Redis")
    valkey = info.get("valkey_version")
    return Found(
        f"Valkey {valkey}" if valkey else f"Redis {info['redis_version']}",
        int(info.get("process_id", 0)),
        info.get("run_id", ""),
        info.get("loading") == "1",
    )


def loopback_addresses(host: str) -> list[str]:
    """The loopback (or any-local) addresses behind `host`; ConfigError if it has none."""
    try:
        infos = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--embedded: cannot resolve {host!r} ({error})") from error
    found = dict.fromkeys(str(info[4][0]) for info in infos)
    local = [address for address in found if _is_local(address)]
    if not local:
        raise ConfigError(
            f"--embedded starts a server on this machine, and {host!r} is not its loopback "
            "address: use localhost in the URL, or leave out --embedded"
        )
    return local


def _is_local(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return parsed.is_loopback or parsed.is_unspecified


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
