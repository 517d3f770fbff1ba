"""What the core does, in plain Python and without a thought for speed: the oracle of its tests.

1. Packing of commands, XADDs, settle batches and envelopes.
2. Replies to and from bytes.
3. Which waiter is told what.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fastq._core import ReplyError

Part = bytes | bytearray | memoryview | str | int


# Packing


def command(*parts: Part) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(bulk(to_bytes(part)) for part in parts)


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def to_bytes(part: Part) -> bytes:
    if isinstance(part, str):
        return part.encode()
    return str(part).encode() if isinstance(part, int) else bytes(part)


def xadd(key: bytes, name: bytes, more: Sequence[Part], payload: bytes) -> bytes:
    return command("XADD", key, "*", "f", name, *more, "d", payload)


def envelope(started_ms: int, finished_ms: int, tries: int, value: bytes) -> bytes:
    """The outcome of a success."""
    return f"complete - {started_ms} {finished_ms} {tries}\n".encode() + value


class Result(NamedTuple):
    """What is kept of one job; `ms` None is for ever."""

    key: bytes
    ms: int | None
    envelope: bytes


def settle(
    stream: bytes, group: bytes, ids: Sequence[bytes], results: Sequence[Result] = ()
) -> bytes:
    """All jobs of one loop turn: `results` are those of the jobs that keep theirs."""
    sets = [
        command("SET", key, data, "NX", *(() if ms is None else ("PX", ms)))
        for key, ms, data in results
    ]
    ends = command("XACK", stream, group, *ids), command("XDEL", stream, *ids)
    return b"".join([command("MULTI"), *sets, *ends, command("EXEC")])


# Replies


@dataclass(frozen=True)
class Simple:
    text: bytes


@dataclass(frozen=True)
class Error:
    text: str


@dataclass(frozen=True)
class Push:
    parts: tuple[Any, ...]


def render(reply: Any) -> bytes:
    """A reply as the server writes it: Simple, Error, Push, None, bool, int, bytes, lists."""
    match reply:
        case Simple(text):
            return b"+%b\r\n" % text
        case Error(message):
            return b"-%b\r\n" % message.encode()
        case Push(parts):
            return b">" + aggregate(parts)
        case None:
            return b"$-1\r\n"
        case bool():
            return b"#t\r\n" if reply else b"#f\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return bulk(reply)
    return b"*" + aggregate(reply)


def aggregate(parts: Sequence[Any]) -> bytes:
    return b"%d\r\n" % len(parts) + b"".join(map(render, parts))


def parsed(reply: Any) -> Any:
    """What the reader of a reply gets to see, in a form that can be compared."""
    match reply:
        case Simple(text):
            return text
        case ReplyError():
            return Error(str(reply))
        case Push():
            return reply
        case list() | tuple():
            return [parsed(part) for part in reply]
    return reply


# Waiters


@dataclass(frozen=True)
class Request:
    """`replies` of `kind`: "future" and "callback" have one, "list" and "batch" as many as come."""

    kind: str
    replies: tuple[Any, ...]


def told(requests: Sequence[Request]) -> list[tuple[int, Any]]:
    """Who is told what, in the order of the replies; pushes are Requests of that kind."""
    return [(place, what) for place, request in enumerate(requests) for what in tell(request)]


def tell(request: Request) -> Iterator[Any]:
    replies = parsed(request.replies)
    if request.kind == "list":
        yield replies
    elif request.kind == "batch":
        # The first error says why; EXEC's own reply, the last one, says what became of it.
        yield next((reply for reply in replies if isinstance(reply, Error)), replies[-1])
    else:
        yield from replies
