"""`fastq-worker --check` (is a worker ready?) and `--health-file` (does its loop turn?)."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import DEADLINE_S, SETTINGS, Command, commands, enqueue, result, url_at, url_of
from servers import Server, free_port
from waiting import eventually_sync

Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `fastq-worker` with these words."""
    with commands(tmp_path) as make:
        yield lambda *words, **environ: make("fastq-worker", *words, **environ)


@pytest.fixture
def url(valkey: Server) -> str:
    return url_of(valkey)


@pytest.fixture
def serving(start: Start, url: str) -> Callable[..., Command]:
    """Starts a worker and returns once it serves its queue."""

    def make(*words: str) -> Command:
        command = start(SETTINGS, "--redis", url, *words)
        command.says("serves queue")
        return command

    return make


def test_check_tells_whether_a_worker_of_this_host_serves_the_queue(
    start: Start, serving: Start, url: str
) -> None:
    def check() -> tuple[int, str]:
        command = start(SETTINGS, "--check", "--redis", url)
        return command.ends(), command.text

    none = f"No worker on this host ({socket.gethostname()}) serves queue 'default'\n"
    assert check() == (1, none)
    worker = serving()
    eventually_sync(lambda: check()[0] == 0, DEADLINE_S)
    _, text = check()
    assert f":{worker.process.pid}:" in text
    assert text.endswith(" serves queue 'default'\n")
    assert start(SETTINGS, "--check", "--queues", "other", "--redis", url).ends() == 1
    assert worker.stops() == 0
    assert check() == (1, none)


def test_check_says_that_redis_is_away(start: Start) -> None:
    port = free_port()
    command = start(SETTINGS, "--check", "--redis", url_at(port))
    assert command.ends() == 3
    assert command.text.startswith(f"Redis is away: redis://127.0.0.1:{port}/0: [Errno ")


@pytest.mark.faults
def test_check_does_not_wait_for_a_frozen_redis(
    start: Start, make_server: Callable[..., Server]
) -> None:
    server = make_server()
    server.pause()
    began_s = time.monotonic()
    command = start(SETTINGS, "--check", "--redis", url_of(server))
    assert command.ends() == 3
    # 5 s, and what it takes to start Python on a busy machine.
    assert time.monotonic() - began_s < 20
    assert command.text.startswith(f"Redis is away: redis://127.0.0.1:{server.port}/0")
    assert "answer" in command.text


def test_the_health_file_is_touched_while_the_loop_turns(
    serving: Start, tmp_path: Path, url: str
) -> None:
    path = tmp_path / "health"
    worker = serving("--health-file", str(path))

    def touched_after(moment_ns: int) -> int:
        def newer() -> int:
            seen_ns = path.stat().st_mtime_ns if path.exists() else 0
            return seen_ns if seen_ns > moment_ns else 0

        return eventually_sync(newer, DEADLINE_S)

    first_ns = touched_after(0)
    third_ns = touched_after(touched_after(first_ns))
    assert third_ns - first_ns >= 1.8e9
    assert result(url, enqueue(url, "block_the_loop", str(path))) is True
    touched_after(path.stat().st_mtime_ns)
    assert worker.stops() == 0


def test_a_health_file_that_cannot_be_touched_is_said_once(serving: Start, url: str) -> None:
    worker = serving("--health-file", "no/such/folder/health")
    worker.says("The health file cannot be touched: ")
    assert result(url, enqueue(url, "add", 1, 2)) == 3
    assert worker.stops() == 0
    assert worker.text.count("health file") == 1
