"""Servers for the tests.

`valkey`: one Valkey for the whole session. `server`: the same, or with `@pytest.mark.servers` each
server that is available here, one after the other; `server_name` is its name alone. `make_server`:
servers of one test, for those that break or configure theirs. `tally`: which jobs of `counted.py`
ran how often, on a server that no test breaks. Before each test the session's servers are emptied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from servers import DEFAULT, NAMES, Server, ServerMissing, find_binary

if TYPE_CHECKING:
    from counted import Tally


class Pool:
    """The session's servers: 1. starts each when first asked for, 2. empties them, 3. ends them."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}

    def get(self, name: str) -> Server:
        if name not in self._servers:
            self._servers[name] = start(name)
        return self._servers[name]

    def empty(self) -> None:
        for server in self._servers.values():
            server.empty()

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def start(name: str, *args: str) -> Server:
    if reason := reason_missing(name):
        pytest.skip(reason)
    server = Server(name, *args)
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


def pytest_configure(config: pytest.Config) -> None:
    required = os.environ.get("FASTQ_REQUIRE_SERVERS", "").split()
    problems = [why for name in required if (why := reason_missing(name))]
    if problems:
        raise pytest.UsageError("FASTQ_REQUIRE_SERVERS: " + "; ".join(problems))


def reason_missing(name: str) -> str | None:
    if name not in NAMES:
        return f"{name} is none of {', '.join(NAMES)}"
    try:
        find_binary(name)
    except ServerMissing as missing:
        return str(missing)
    return None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "server_name" not in metafunc.fixturenames:
        return
    everywhere = metafunc.definition.get_closest_marker("servers") is not None
    names = NAMES if everywhere else (DEFAULT,)
    metafunc.parametrize("server_name", [_param(name) for name in names], scope="session")


def _param(name: str) -> object:
    reason = reason_missing(name)
    marks = [pytest.mark.skip(reason=reason)] if reason else []
    return pytest.param(name, id=name, marks=marks)


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def valkey(pool: Pool) -> Server:
    return pool.get(DEFAULT)


@pytest.fixture(scope="session")
def server(pool: Pool, server_name: str) -> Server:
    return pool.get(server_name)


@pytest.fixture(scope="session")
def _counter() -> Iterator[Server]:
    server = start(DEFAULT)
    yield server
    server.close()


@pytest.fixture
def tally(_counter: Server, monkeypatch: pytest.MonkeyPatch) -> Tally:
    # Imported here: tests of the core alone need no worker.
    from counted import COUNTER, Tally

    _counter.empty()
    monkeypatch.setenv(COUNTER, _counter.url())
    return Tally(_counter)


@pytest.fixture(autouse=True)
def _emptied(pool: Pool) -> None:
    pool.empty()


@pytest.fixture(autouse=True)
def _unknown_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of an unknown function goes round before it is dead: not for 15 s in each test."""
    monkeypatch.setattr("fastq.outcome._UNKNOWN_DELAYS_S", (0.01, 0.01, 0.01, 0.01))


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """`make_server(name, *options_of_the_server)`: a started server of this test's own."""
    servers: list[Server] = []

    def make(name: str = DEFAULT, *args: str) -> Server:
        servers.append(start(name, *args))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports travel between processes as UTF-8; a captured log may have lone surrogates."""
    report = yield
    report.sections = [
        (title, text.encode("utf-8", "backslashreplace").decode())
        for title, text in report.sections
    ]
    return report
