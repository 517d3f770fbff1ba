"""Servers that refuse: one that is full, and a user from whom something can be taken."""

import contextlib
from collections.abc import Iterator
from typing import Any, cast

from servers import Server

USER, SECRET = "worker", "of-the-tests"


class Permissions:
    """A user of the server, from whom something can be taken."""

    def __init__(self, server: Server) -> None:
        self._redis = cast(Any, server.client())
        self.url = f"redis://{USER}:{SECRET}@127.0.0.1:{server.port}/0"
        self.set(f"reset on >{SECRET} allkeys allchannels +@all")

    def set(self, rules: str) -> None:
        self._redis.execute_command("ACL", "SETUSER", USER, *rules.split())

    def close(self) -> None:
        self._redis.execute_command("ACL", "DELUSER", USER)


@contextlib.contextmanager
def permissions(server: Server) -> Iterator[Permissions]:
    user = Permissions(server)
    try:
        yield user
    finally:
        user.close()


@contextlib.contextmanager
def full(server: Server) -> Iterator[None]:
    """The server has no memory left for anything that grows."""
    client = server.client()
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)
