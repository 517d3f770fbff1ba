"""A blocking RESP2 connection, as cheap as Python allows.

The harness must not be what is measured: it shares two cores with the server and the worker, so it
talks to the server through this rather than through a client library.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from typing import Any

import hiredis

Arg = bytes | str | int


def pack(*args: Arg) -> bytes:
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        raw = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(raw), raw))
    return b"".join(parts)


class Wire:
    """One socket to one server on the loopback. Replies come in order; errors are raised."""

    def __init__(self, port: int, timeout_s: float = 60) -> None:
        # A reply deadline on every call: no bench may hang on a server that has gone.
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def call(self, *args: Arg) -> Any:
        return self.calls([args])[0]

    def calls(self, commands: Iterable[tuple[Arg, ...]]) -> list[Any]:
        packed = [pack(*command) for command in commands]
        self.send(b"".join(packed))
        return [self._reply() for _ in packed]

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def skip(self, size: int) -> None:
        """Read exactly `size` bytes unparsed: for replies whose length is known beforehand."""
        while size > 0:
            data = self._socket.recv(min(size, 1 << 18))
            if not data:
                raise ConnectionError("the server closed the connection")
            if data[:1] == b"-":
                raise RuntimeError(data.decode())
            size -= len(data)

    def close(self) -> None:
        self._socket.close()

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise RuntimeError(str(reply))
        return reply
