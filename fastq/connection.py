"""Connections: opening one, its handshake, its deadlines, and the delay before another try."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import ssl
from collections.abc import Callable, Iterable
from typing import Any, cast

from fastq._core import CallbackWaiter, ConnectionLost, FutureWaiter, ReplyError, Waiter, Wire, pack
from fastq.redis_settings import RedisSettings

REPLY_DEADLINE_S = 6.4
"""A connection whose oldest request has waited this long is given up (within 1.5 times of it)."""


class CannotConnect(Exception):
    """The server is away, or refuses the handshake. The text names the address and the cause.

    `final`: another try in a moment would fail alike, until somebody mends what the text says.
    """

    def __init__(self, text: str, *, final: bool = False) -> None:
        super().__init__(text)
        self.final = final


# What an error reply says of the server, not of the request: another try may well succeed.
_PASSING = ("LOADING", "READONLY", "MASTERDOWN", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED")
# Of these, the ones that another connection may not meet: the role of this server has changed.
_MOVED = ("READONLY", "MASTERDOWN", "UNBLOCKED", "NOAUTH")
_CODE = re.compile(
    r"\b(" + "|".join((*_PASSING, "NOAUTH", "NOPERM", "NOGROUP", "NOSCRIPT", "OOM", "WRONGTYPE",
                       "EXECABORT", "BUSYGROUP", "WRONGPASS", "MISCONF")) + r")\b"
)  # fmt: skip

# Where a script is refused a command, servers give no code: from 7.0 on, and before.
_NOPERM_IN_SCRIPT = re.compile("ACL failure in script|can't run this command")
# What servers from 7.0 on add to an error of a script: its hash, or nothing, and a line in it.
_IN_SCRIPT = re.compile(r" script: (?:\w+, )?on @")


def code_of(error: BaseException) -> str:
    """The code of an error reply, e.g. `OOM`; `ERR` where there is none that matters.

    Redis 6.2 wraps errors inside scripts, so the code is looked for anywhere in the text.
    """
    text = str(error)
    found = _CODE.search(text)
    if found is None:
        return "NOPERM" if _NOPERM_IN_SCRIPT.search(text) else "ERR"
    return found.group(1)


def text_of(error: BaseException) -> str:
    """An error reply without what servers add to those of scripts: its hash, and a line in it."""
    text = str(error)
    found = _CODE.search(text)
    # What a script raises again has its code twice.
    return _IN_SCRIPT.split(text[found.start() if found else 0 :])[0].replace("ERR ERR ", "ERR ")


def named(error: ReplyError, keys: Iterable[bytes]) -> ReplyError:
    """The error, with the keys that it may be about where that is what has to be known."""
    if code_of(error) != "WRONGTYPE":
        return error
    names = ", ".join(key.decode() for key in keys)
    return ReplyError(f"{text_of(error)}. One of {names} is of another type: something made it.")


def is_passing(error: BaseException) -> bool:
    """True if the same request may succeed a little later."""
    return code_of(error) in _PASSING


def wants_reconnect(error: BaseException) -> bool:
    """True if the server is no longer the one to talk to, e.g. after a failover."""
    return code_of(error) in _MOVED


class Backoff:
    """Growing delays with jitter: about 50 ms, 100 ms, ... up to `maximum_s`."""

    def __init__(self, maximum_s: float = 2.5, base_s: float = 0.05) -> None:
        self.maximum_s = maximum_s
        self.base_s = base_s
        self.failures = 0

    def reset(self) -> None:
        self.failures = 0

    def next_s(self) -> float:
        """The next delay. Jittered down by up to a half, so that workers do not come at once."""
        # The exponent is capped: after a night of failures 2 ** n would overflow a float.
        delay_s = min(self.maximum_s, self.base_s * 2.0 ** min(self.failures, 20))
        self.failures += 1
        return delay_s * random.uniform(0.5, 1)


class Connection(asyncio.Protocol):
    """One connection.

    1. Gathers the requests of a loop turn into one write.
    2. Feeds what is read to the wire, which finds the waiters.
    3. Gives itself up if the oldest request waits too long.
    4. `closed` is resolved, with the cause, when it has ended for whatever reason.

    Cancelling the caller of `request` or `call` leaves the connection consistent: the reply is
    counted off and dropped.
    """

    def __init__(
        self,
        address: str,
        *,
        reply_deadline_s: float = REPLY_DEADLINE_S,
        push: Callable[[list[Any]], object] | None = None,
    ) -> None:
        self.address = address
        self.wire = Wire(push)
        self.client_id = 0
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[Exception] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._deadline_s = reply_deadline_s
        self._watch: asyncio.TimerHandle | None = None
        self._seen = (0, 0)
        self._flushing = False

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self.wire.feed(data)
        except Exception as error:
            # Replies may be left unread behind the broken one: nothing here can be trusted now.
            self.fail(ConnectionLost(f"{self.address}: {type(error).__name__}: {error}"))
            if not isinstance(error, ReplyError | ConnectionLost):
                self._loop.call_exception_handler(
                    {"message": "fastq: error while a reply was handled", "exception": error}
                )

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f": {exc}" if exc else ""
        self.fail(ConnectionLost(f"{self.address}: the connection was closed{cause}"))

    # What fastq calls

    def send(self, packed: bytes, waiter: Waiter) -> None:
        """Queues a request; all of one loop turn go out as one write."""
        self.wire.send(packed, waiter)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)
        if self._watch is None:
            self._arm()

    def flush(self) -> None:
        """Writes what is queued, now."""
        self._flushing = False
        data = self.wire.take_output()
        if data and self._transport is not None:
            self._transport.write(data)

    def request(self, packed: bytes, count: int = 0) -> asyncio.Future[Any]:
        """Sends a packed request and gives the future of its reply (of `count` replies, if given).

        The future raises `ReplyError` for an error reply (not in a list), `ConnectionLost` if the
        reply will never come, `NotSent` if the request surely did not reach the server.
        """
        future = self._loop.create_future()
        self.send(packed, FutureWaiter(future, count))
        return future

    def call(self, *parts: bytes | str | int) -> asyncio.Future[Any]:
        """`request` of a command that is yet to be packed."""
        return self.request(pack(*parts))

    def call_back(self, packed: bytes, callback: Callable[[Any], object]) -> None:
        """Sends a packed request; `callback` gets the reply, error reply, or `ConnectionLost`."""
        self.send(packed, CallbackWaiter(callback))

    def fail(self, error: Exception) -> None:
        """Ends the connection at once; all who wait are told `error`."""
        if self.closed.done():
            return
        self.closed.set_result(error)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()
        self.wire.close(error)

    def close(self) -> None:
        """Ends the connection because it is not needed any more."""
        self.flush()
        if self._transport is not None and not self.closed.done():
            self._transport.close()
        self.fail(ConnectionLost(f"{self.address}: closed here"))

    def _arm(self) -> None:
        self._seen = (self.wire.replies, 0)
        self._watch = self._loop.call_later(self._deadline_s / 2, self._check)

    def _check(self) -> None:
        # A timer per request would cost more than the requests; two looks half a deadline apart
        # without a single reply in between say the same.
        self._watch = None
        if not len(self.wire):
            return
        replies, misses = self._seen
        misses = misses + 1 if replies == self.wire.replies else 0
        if misses >= 2:
            self.fail(ConnectionLost(f"{self.address}: no reply for {self._deadline_s:g} s"))
            return
        self._seen = (self.wire.replies, misses)
        self._watch = self._loop.call_later(self._deadline_s / 2, self._check)


async def connect(
    settings: RedisSettings,
    *,
    name: str = "fastq",
    resp3: bool = False,
    timeout_s: float = 5,
    reply_deadline_s: float = REPLY_DEADLINE_S,
    push: Callable[[list[Any]], object] | None = None,
) -> Connection:
    """Opens a connection and logs in. `CannotConnect` within `timeout_s` if that fails.

    `name` is what CLIENT LIST shows. The server's id of the client is in `client_id`.
    """
    connection = Connection(settings.address, reply_deadline_s=reply_deadline_s, push=push)
    try:
        async with asyncio.timeout(timeout_s):
            await _open(connection, settings)
            await _shake_hands(connection, settings, name, resp3)
    except TimeoutError:
        connection.fail(ConnectionLost("connect timed out"))
        raise CannotConnect(f"{settings.address}: no answer in time") from None
    except (OSError, ConnectionLost, ReplyError) as error:
        connection.fail(ConnectionLost(str(error)))
        text = str(error) or type(error).__name__
        text = text if settings.address in text else f"{settings.address}: {text}"
        raise CannotConnect(text, final=_is_final(error)) from error
    except BaseException:
        connection.fail(ConnectionLost("connect was cancelled"))
        raise
    return connection


def _is_final(error: Exception) -> bool:
    if isinstance(error, ReplyError):
        return not (is_passing(error) or "max number of clients" in str(error))
    return isinstance(error, ssl.SSLCertVerificationError)


async def _open(connection: Connection, settings: RedisSettings) -> None:
    loop = asyncio.get_running_loop()
    tls = settings.tls_context()
    if settings.unix_socket:
        await loop.create_unix_connection(lambda: connection, settings.unix_socket)
        return
    await loop.create_connection(
        lambda: connection,
        settings.host,
        settings.port,
        ssl=tls,
        server_hostname=settings.host if tls else None,
    )


async def _shake_hands(
    connection: Connection, settings: RedisSettings, name: str, resp3: bool
) -> None:
    # One write, so a connection costs one round trip; the replies are looked at in order.
    calls = []
    if settings.password is not None:
        user = (settings.username,) if settings.username else ()
        calls.append(connection.call("AUTH", *user, settings.password))
    if resp3:
        calls.append(connection.call("HELLO", 3))
    if settings.db:
        calls.append(connection.call("SELECT", settings.db))
    calls.append(connection.call("CLIENT", "SETNAME", name))
    calls.append(connection.call("CLIENT", "ID"))
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
        connection.client_id = result  # the last one is the reply to CLIENT ID


class Link:
    """A connection that is opened when it is first needed, and again when it was lost.

    Callers that come while it is being opened share that one try. `on_open(connection)` is awaited
    before anybody gets it.
    """

    def __init__(
        self,
        settings: RedisSettings,
        *,
        connect_timeout_s: float,
        name: str = "fastq",
        resp3: bool = False,
        push: Callable[[list[Any]], object] | None = None,
        on_open: Callable[[Connection], Any] | None = None,
    ) -> None:
        self.settings = settings
        self.connect_timeout_s = connect_timeout_s
        self._options: dict[str, Any] = {"name": name, "resp3": resp3, "push": push}
        self._on_open = on_open
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._closed = False

    @property
    def connection(self) -> Connection | None:
        """The open connection, or None."""
        connection = self._connection
        return connection if connection is not None and not connection.closed.done() else None

    async def ready(self) -> Connection:
        """The open connection. `CannotConnect` within the connect timeout."""
        connection = self.connection
        if connection is not None:
            return connection
        if self._closed:
            raise CannotConnect(f"{self.settings.address}: the client was closed")
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._open())
            self._opening.add_done_callback(_look_at)
        # Shielded: one caller that is cancelled must not take the connection from the others.
        try:
            return await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            if not self._opening.cancelled():
                raise
            # `close` has ended the try, which is not to end its callers.
            raise CannotConnect(f"{self.settings.address}: the client was closed") from None

    async def _open(self) -> Connection:
        backoff = Backoff(maximum_s=0.5)
        give_up_s = asyncio.get_running_loop().time() + self.connect_timeout_s
        while True:
            left_s = give_up_s - asyncio.get_running_loop().time()
            try:
                connection = await connect(
                    self.settings,
                    timeout_s=max(left_s, 0.05),
                    reply_deadline_s=self.connect_timeout_s / 1.5,
                    **self._options,
                )
                break
            except CannotConnect as error:
                # A server that restarts is back in a moment; one that is away stays so to the end.
                delay_s = backoff.next_s()
                late = asyncio.get_running_loop().time() + delay_s >= give_up_s
                if error.final or late:
                    raise
                await asyncio.sleep(delay_s)
        if self._on_open is not None:
            try:
                await self._on_open(connection)
            except BaseException as error:
                connection.fail(ConnectionLost(str(error)))
                raise
        self._connection = connection
        return connection

    async def close(self) -> None:
        """Closes the connection; later calls of `ready` fail."""
        self._closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._opening
        if self.connection is not None:
            self.connection.close()


def _look_at(task: asyncio.Task[Connection]) -> None:
    # All who waited may have been cancelled: the exception still has to be looked at by someone.
    if not task.cancelled():
        task.exception()
