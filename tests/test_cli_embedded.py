"""`fastq-worker --embedded`: a server beside the worker, from its start to whatever end it has."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from commands import (
    DEADLINE_S,
    SECRET,
    SETTINGS,
    Command,
    commands,
    enqueue,
    gone,
    result,
    status,
    url_at,
)
from fastq.probe import probe
from owners import household, is_alive
from servers import Server, free_port
from waiting import eventually_sync

Start = Callable[..., Command]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def url(port: int) -> str:
    return url_at(port)


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    """Starts a worker with an embedded server at the URL."""
    with commands(tmp_path) as make:
        yield lambda *words: make("fastq-worker", SETTINGS, "--embedded", "--redis", url, *words)


@pytest.fixture
def serving(start: Start) -> Callable[..., Command]:
    def make(*words: str) -> Command:
        command = start(*words)
        command.says("serves queue")
        return command

    return make


def server_of(folder: Path) -> int:
    """The pid of the server that is recorded there."""
    record = json.loads((folder / ".fastq" / "server.json").read_text())
    return int(record["pid"])


def test_the_server_runs_at_the_url_and_ends_with_the_worker(
    serving: Start, tmp_path: Path, url: str, port: int
) -> None:
    worker = serving()
    assert f" started at 127.0.0.1:{port} (pid {server_of(tmp_path)})" in worker.text
    assert result(url, enqueue(url, "add", 1, 2)) == 3
    processes = household(server_of(tmp_path))
    assert worker.stops() == 0
    gone(processes)
    assert f"embedded server at 127.0.0.1:{port} stopped" in worker.text
    assert (tmp_path / ".fastq" / ".gitignore").read_text() == "*\n"
    assert (tmp_path / ".fastq" / "appendonlydir").is_dir()


def test_jobs_survive_a_restart_and_a_killed_worker(
    start: Start, serving: Start, tmp_path: Path, url: str
) -> None:
    worker = serving("--queues", "other")
    enqueue(url, "mark", "first")
    assert worker.stops() == 0
    worker = serving("--queues", "other")
    enqueue(url, "mark", "second")
    worker.process.kill()
    assert start("--burst").ends() == 0
    assert (tmp_path / "first").exists()
    assert (tmp_path / "second").exists()


def test_two_started_at_once_share_one_server(start: Start, tmp_path: Path, port: int) -> None:
    pair = [start(), start()]
    for worker in pair:
        worker.says("serves queue")
    owner, joiner = sorted(pair, key=lambda worker: "joined the embedded server" in worker.text)
    assert " started at " in owner.text
    assert f"joined the embedded server at 127.0.0.1:{port}" in joiner.text
    assert joiner.stops() == 0
    found = probe("127.0.0.1", port, SECRET)
    assert found is not None
    assert found.pid == server_of(tmp_path)
    processes = household(server_of(tmp_path))
    assert owner.stops() == 0
    gone(processes)


def test_a_joiner_lives_on_without_the_owner(serving: Start, url: str) -> None:
    owner, joiner = serving(), serving("--queues", "other")
    assert owner.stops() == 0
    joiner.says("Redis is not to be had")
    later = serving()
    assert result(url, enqueue(url, "add", 1, 2, queue="other"), queue="other") == 3
    assert joiner.stops() == 0
    assert later.stops() == 0


def test_another_server_on_the_port_is_named(tmp_path: Path, valkey: Server) -> None:
    info = valkey.client().info("server")
    with commands(tmp_path) as make:
        worker = make("fastq-worker", SETTINGS, "--embedded", "--redis", valkey.url())
        assert worker.ends() == 2
    assert worker.text == (
        f"Error: 127.0.0.1:{valkey.port} is taken by Valkey {info['valkey_version']} "
        f"(pid {info['process_id']}, not started by fastq here): "
        "stop it, or choose another port in the URL\n"
    )
    assert valkey.client().ping()


def test_a_url_that_it_cannot_serve_is_wrong_usage(tmp_path: Path) -> None:
    with commands(tmp_path) as make:
        worker = make("fastq-worker", SETTINGS, "--embedded", "--redis", "rediss://:hush@localhost")
        assert worker.ends() == 2
    assert worker.text.startswith("Error: --embedded serves redis:// URLs only, not rediss://")


@pytest.mark.faults
def test_kill_9_of_the_worker_leaves_no_server(serving: Start, tmp_path: Path, port: int) -> None:
    worker = serving()
    processes = household(server_of(tmp_path))
    worker.process.kill()
    gone(processes)
    assert probe("127.0.0.1", port) is None


@pytest.mark.faults
def test_ctrl_c_hands_back_before_the_server_ends(serving: Start, tmp_path: Path, url: str) -> None:
    worker = serving()
    job = enqueue(url, "run_on")
    eventually_sync((tmp_path / "running").exists, DEADLINE_S)
    processes = household(server_of(tmp_path))
    # As a terminal does: to all of the command's process group.
    os.killpg(worker.process.pid, signal.SIGINT)
    worker.says(" stops")
    os.killpg(worker.process.pid, signal.SIGINT)
    assert worker.ends() == 1
    assert "1 unfinished jobs were handed back" in worker.text
    gone(processes)
    server = serving("--queues", "other")
    assert status(url, job) == "queued"
    assert server.stops() == 0


@pytest.mark.faults
def test_a_server_that_dies_by_itself_is_said_so(serving: Start, tmp_path: Path) -> None:
    worker = serving()
    os.kill(server_of(tmp_path), signal.SIGKILL)
    worker.says("The embedded server has ended by itself; the end of .fastq/server.log may say why")
    assert worker.stops() == 0
    assert worker.text.count("ended by itself") == 1


@pytest.mark.faults
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_the_server_starts_leaves_nothing(
    start: Start, serving: Start, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    first = serving()
    server = psutil.Process(server_of(tmp_path))
    # Its owner is gone, and it does not end: the next worker has to wait for it.
    server.suspend()
    first.process.kill()
    worker = start()
    eventually_sync(lambda: not (tmp_path / ".fastq" / "server.json").exists(), DEADLINE_S)
    assert is_alive(server)
    worker.send(number)
    assert worker.ends() == code
    assert "serves queue" not in worker.text
    server.resume()
    gone([server])
