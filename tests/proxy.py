"""A TCP proxy that breaks connections in the ways networks do, and can end TLS towards clients."""

import asyncio
import contextlib
import re
import ssl
from collections import deque
from typing import Self

from waiting import eventually

_NAME = re.compile(rb"SETNAME\r\n\$\d+\r\n([^\r]+)\r\n")
_CHUNK = 65_536


class Proxy:
    """Forwards from a port of its own to a server's.

    1. `delay_s`: what is under way takes this long, in each direction.
    2. `chunk`: no write is larger than this.
    3. `refusing`: new connections are closed at once. `cut()` closes the present ones.
       `forbidden`: so does a request that has these bytes in it, before it reaches the server.
    4. Each connection is a `Tunnel`, which can be broken by itself.
    """

    def __init__(
        self, port: int, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
    ) -> None:
        self.delay_s = 0.0
        self.chunk = _CHUNK
        self.refusing = False
        self.forbidden = b""
        self.tunnels: list[Tunnel] = []
        self.port = 0
        self._to = port
        self._host = host
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self._host, 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def url(self, db: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{db}"

    def cut(self) -> None:
        for tunnel in self.tunnels:
            tunnel.cut()

    async def find(self, ending: str) -> "Tunnel":
        """The newest open connection whose client gave itself such a name; waits for it."""
        found = await eventually(lambda: [t for t in self.tunnels if t.is_named(ending)])
        return found[-1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if self.refusing:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            tunnel = Tunnel(self, (reader, writer), await asyncio.open_connection(port=self._to))
            self.tunnels.append(tunnel)
            await tunnel.run()
            return
        writer.transport.abort()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Tunnel:
    """One connection through the proxy.

    1. `freeze()`: nothing passes any more, not even the end: what a NAT does that forgot it.
    2. `cut()`: ends it on both sides, at once.
    3. `cut_after(n)`: ends it when n more bytes of replies have passed.
    4. `drop_replies()`: requests pass, replies are thrown away.
    """

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self.name = ""
        self.is_open = True
        self.sent = 0
        self._proxy = proxy
        self._client = client
        self._server = server
        self._frozen = False
        self._dropping = False
        self._budget: int | None = None
        self._ended = asyncio.Event()

    def is_named(self, ending: str) -> bool:
        return self.is_open and self.name.endswith(ending)

    def freeze(self) -> None:
        self._frozen = True

    def drop_replies(self) -> None:
        self._dropping = True

    def cut(self) -> None:
        self.is_open = False
        self._client[1].transport.abort()
        self._server[1].transport.abort()
        self._ended.set()

    def cut_after(self, size: int) -> None:
        self._budget = size

    async def run(self) -> None:
        """Forwards until an end closes, unless it is frozen: then until the proxy closes."""
        ways = [
            asyncio.ensure_future(self._forward(self._client[0], self._server[1], replies=False)),
            asyncio.ensure_future(self._forward(self._server[0], self._client[1], replies=True)),
            asyncio.ensure_future(self._ended.wait()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.cut()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        # Read on while what was read is delayed, else a delay would be a throughput limit too.
        queue: deque[tuple[float, bytes]] = deque()
        more = asyncio.Event()
        delivering = asyncio.ensure_future(self._deliver(queue, more, writer, replies))
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(_CHUNK):
                    self._look_at(data, replies)
                    queue.append((loop.time() + self._proxy.delay_s, data))
                    more.set()
            queue.append((loop.time() + self._proxy.delay_s, b""))
            more.set()
            await delivering
        finally:
            delivering.cancel()

    def _look_at(self, data: bytes, replies: bool) -> None:
        if replies:
            return
        self.sent += len(data)
        if not self.name and (found := _NAME.search(data)):
            self.name = found[1].decode()
        if self._proxy.forbidden and self._proxy.forbidden in data:
            self.cut()

    async def _deliver(
        self,
        queue: deque[tuple[float, bytes]],
        more: asyncio.Event,
        writer: asyncio.StreamWriter,
        replies: bool,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await more.wait()
            more.clear()
            while queue:
                due_s, data = queue.popleft()
                await asyncio.sleep(max(due_s - loop.time(), 0))
                if self._frozen:
                    await self._ended.wait()
                if not data:
                    return
                if not (replies and self._dropping):
                    await self._write(writer, data, replies)

    async def _write(self, writer: asyncio.StreamWriter, data: bytes, replies: bool) -> None:
        with contextlib.suppress(OSError):
            for first in range(0, len(data), self._proxy.chunk):
                piece = data[first : first + self._proxy.chunk]
                if replies and self._budget is not None:
                    piece = piece[: self._budget]
                    self._budget -= len(piece)
                writer.write(piece)
                await writer.drain()
                if replies and self._budget == 0:
                    # A close after the last byte, not an abort, which might overtake it.
                    self._end_replies(writer)
                    return
                await asyncio.sleep(0)

    def _end_replies(self, writer: asyncio.StreamWriter) -> None:
        self.is_open = False
        writer.close()
        self._server[1].transport.abort()
        self._ended.set()
