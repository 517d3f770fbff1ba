"""Whether a worker is up: readiness by its beat, liveness by a file."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

from fastq._core import ConnectionLost, ReplyError
from fastq.beats import BEAT_S
from fastq.connection import CannotConnect, Connection, connect
from fastq.keys import QueueKeys
from fastq.settings import Settings

log = logging.getLogger("fastq.health")

UP, DOWN, AWAY = 0, 1, 3
_TIMEOUT_S = 5.0


async def check(settings: Settings) -> tuple[int, str]:
    """An exit code and a line: is a worker of this queue, on this host, beating and reading?"""
    keys = QueueKeys(settings.queue)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            connection = await connect(settings.redis, name="fastq:check", timeout_s=_TIMEOUT_S)
            beating = await _beating_here(connection, keys)
            connection.close()
    except (CannotConnect, ConnectionLost, ReplyError) as error:
        return AWAY, f"Redis is away: {error}"
    except TimeoutError:
        return AWAY, f"Redis is away: {settings.redis.address} does not answer"
    reading = [name for name, reads in beating.items() if reads]
    if reading:
        return UP, f"{', '.join(reading)} serves queue {keys.name!r}"
    if beating:
        return DOWN, f"{', '.join(beating)} beats, but does not read from queue {keys.name!r}"
    return DOWN, f"No worker on this host ({socket.gethostname()}) serves queue {keys.name!r}"


async def _beating_here(connection: Connection, keys: QueueKeys) -> dict[str, bool]:
    """The consumers of this host with a fresh beat, and whether each reads."""
    time: list[Any] = await connection.call("TIME")
    oldest_ms = int(time[0]) * 1000 - int(2 * BEAT_S * 1000)
    consumers = await connection.call("ZRANGEBYSCORE", keys.beats, oldest_ms, "+inf")
    found: dict[str, bool] = {}
    for consumer in consumers:
        host, reading = await connection.call(
            "HMGET", keys.consumer_prefix + consumer, "host", "reading"
        )
        if host == socket.gethostname().encode():
            found[consumer.decode()] = reading == b"1"
    return found


async def touch_each_second(path: Path) -> None:
    """Touches a file for as long as the event loop turns."""
    complained = False
    while True:
        try:
            path.touch()  # noqa: ASYNC240 - a local file, once a second
            os.utime(path)
        except OSError as error:
            if not complained:
                log.error("The health file cannot be touched: %s", error)
            complained = True
        await asyncio.sleep(1)
