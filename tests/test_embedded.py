"""The embedded server: it runs where it should, keeps its data, and never outlives its owner."""

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from fastq import babysitter
from fastq.embedded import EmbeddedServer
from fastq.probe import free_port, probe
from owners import DEADLINE_S, Owner, all_gone, answering_pid, household, is_alive, ping
from waiting import eventually_sync


@pytest.fixture
def make_owner(tmp_path: Path) -> Iterator[Callable[..., Owner]]:
    owners: list[Owner] = []

    def make(port: int = 0, mode: str = "worker", password: str = "") -> Owner:
        owners.append(Owner(tmp_path, port, mode, password))
        return owners[-1]

    yield make
    for owner in owners:
        owner.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / ".fastq"


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_worker_s_server_runs_at_the_url_and_ends_with_stop(folder: Path, port: int) -> None:
    server = EmbeddedServer.for_worker("127.0.0.1", port, folder=folder)
    with server:
        assert server.url == f"redis://127.0.0.1:{port}/0"
        assert ping(server.url)
        assert server.pid is not None
        processes = household(server.pid)
        record = json.loads((folder / "server.json").read_text())
        assert (record["pid"], record["port"]) == (server.pid, port)
    assert not server.owned
    assert not is_alive(processes[0])
    eventually_sync(lambda: all_gone(processes))
    assert not (folder / "server.json").exists()
    server.stop()


def test_localhost_is_served_at_each_of_its_addresses(folder: Path, port: int) -> None:
    with EmbeddedServer.for_worker("localhost", port, folder=folder) as server:
        assert ping(server.url)
        assert ping(f"redis://127.0.0.1:{port}")


def test_data_survives_a_restart(folder: Path, port: int) -> None:
    server = EmbeddedServer.for_worker("127.0.0.1", port, folder=folder)
    for expected in (None, b"1", b"2"):
        with server, redis.Redis.from_url(server.url) as client:
            assert client.get("count") == expected
            client.incr("count")


def test_data_survives_a_killed_owner(make_owner: Callable[..., Owner], port: int) -> None:
    first = make_owner(port)
    with redis.Redis.from_url(first.said["url"]) as client:
        client.set("kept", "yes")
    first.kill()
    second = make_owner(port)
    with redis.Redis.from_url(second.said["url"]) as client:
        assert client.get("kept") == b"yes"


def test_the_folder_ignores_itself_in_git(folder: Path, port: int) -> None:
    with EmbeddedServer.for_worker("127.0.0.1", port, folder=folder):
        assert (folder / ".gitignore").read_text() == "*\n"


def test_odd_and_long_paths_work(tmp_path: Path, port: int) -> None:
    parent = tmp_path / "a b \"c\" \\ 'd' # é" / ("long" * 40)
    parent.mkdir(parents=True)
    with EmbeddedServer.for_worker("127.0.0.1", port, folder=parent / ".fastq") as server:
        assert ping(server.url)
    assert (parent / ".fastq" / "appendonlydir").is_dir()


def test_a_temporary_server_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with EmbeddedServer.temporary() as server:
        assert ping(server.url)
        assert list(tmp_path.iterdir())
        assert server.pid is not None
        processes = household(server.pid)
    eventually_sync(lambda: all_gone(processes))
    assert not list(tmp_path.iterdir())


def test_a_temporary_server_tries_another_port_if_its_own_is_snatched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = [taken.getsockname()[1], free_port()]
        monkeypatch.setattr("fastq.embedded.free_port", lambda: ports.pop(0))
        with EmbeddedServer.temporary() as server:
            assert ping(server.url)
        assert not ports


@pytest.mark.faults
def test_kill_9_of_the_owner_ends_the_server_and_its_babysitter(
    make_owner: Callable[..., Owner], port: int
) -> None:
    owner = make_owner(port)
    processes = household(owner.said["pid"])
    owner.kill()
    eventually_sync(lambda: all_gone(processes), DEADLINE_S)
    assert probe("127.0.0.1", port) is None


@pytest.mark.faults
def test_kill_9_of_a_temporary_server_s_owner_leaves_no_folder(
    make_owner: Callable[..., Owner], tmp_path: Path
) -> None:
    owner = make_owner(mode="temporary")
    processes = household(owner.said["pid"])
    owner.kill()
    eventually_sync(lambda: all_gone(processes), DEADLINE_S)
    assert not list(tmp_path.iterdir())


@pytest.mark.faults
def test_a_fork_does_not_keep_the_server_of_a_killed_owner_alive(
    make_owner: Callable[..., Owner], port: int
) -> None:
    owner = make_owner(port, mode="fork")
    processes = household(owner.said["pid"])
    owner.kill()
    eventually_sync(lambda: all_gone(processes), DEADLINE_S)
    assert psutil.pid_exists(owner.said["fork"])
    assert make_owner(port).said["owned"]


@pytest.mark.faults
def test_a_server_that_dies_takes_its_babysitter_with_it(
    make_owner: Callable[..., Owner], port: int
) -> None:
    owner = make_owner(port)
    processes = household(owner.said["pid"])
    os.kill(owner.said["pid"], signal.SIGKILL)
    eventually_sync(lambda: all_gone(processes), DEADLINE_S)
    assert "has lost its server" in make_owner(port).said["error"]
    assert owner.end() == 0


@pytest.mark.faults
def test_a_server_that_hangs_is_killed(make_owner: Callable[..., Owner], port: int) -> None:
    owner = make_owner(port)
    processes = household(owner.said["pid"])
    os.kill(owner.said["pid"], signal.SIGSTOP)
    assert owner.end() == 0
    eventually_sync(lambda: all_gone(processes), DEADLINE_S)


def test_ctrl_c_does_not_reach_the_server(make_owner: Callable[..., Owner], port: int) -> None:
    owner = make_owner(port)
    processes = household(owner.said["pid"])
    os.killpg(owner.process.pid, signal.SIGINT)
    assert owner.read() == "interrupted\n"
    assert ping(owner.said["url"])
    assert owner.end() == 0
    eventually_sync(lambda: all_gone(processes), DEADLINE_S)


@pytest.mark.parametrize("stale", [False, True])
def test_of_two_at_once_one_starts_and_the_other_joins(
    make_owner: Callable[..., Owner], folder: Path, port: int, stale: bool
) -> None:
    if stale:
        leave_stale_record(folder, port)
    pair = [make_owner(port), make_owner(port)]
    owner, joiner = sorted(pair, key=lambda one: not one.said["owned"])
    assert [owner.said["owned"], joiner.said["owned"]] == [True, False]
    assert owner.said["pid"] == joiner.said["pid"]
    assert joiner.end() == 0
    assert ping(owner.said["url"])
    assert owner.end() == 0
    assert probe("127.0.0.1", port) is None


def leave_stale_record(folder: Path, port: int, pid: int = 2**22 + 1) -> None:
    folder.mkdir()
    record = {"pid": pid, "run_id": "f" * 40, "host": "127.0.0.1", "port": port, "owner": pid}
    (folder / "server.json").write_text(json.dumps(record))


@pytest.mark.parametrize("pid", [2**22 + 1, os.getpid()], ids=["dead", "another"])
def test_a_stale_record_is_ignored(folder: Path, port: int, pid: int) -> None:
    leave_stale_record(folder, port, pid)
    with EmbeddedServer.for_worker("127.0.0.1", port, folder=folder) as server:
        assert server.owned
        assert answering_pid(port) == server.pid


@pytest.mark.parametrize("text", ["", "[]", '{"pid": 1}'])
def test_a_broken_record_is_ignored(folder: Path, port: int, text: str) -> None:
    folder.mkdir()
    (folder / "server.json").write_text(text)
    with EmbeddedServer.for_worker("127.0.0.1", port, folder=folder) as server:
        assert server.owned


@pytest.mark.faults
def test_the_dying_server_of_a_killed_owner_is_not_joined(
    make_owner: Callable[..., Owner], port: int
) -> None:
    first = make_owner(port)
    old = first.said["pid"]
    os.kill(old, signal.SIGSTOP)
    first.kill()
    second = make_owner(port)
    os.kill(old, signal.SIGCONT)
    assert second.said["owned"]
    assert answering_pid(port) == second.said["pid"] != old


def test_the_password_is_asked_for_and_in_no_command_line(folder: Path, port: int) -> None:
    secret = 'p w"\\\n#é'
    server = EmbeddedServer.for_url(f"redis://:p%20w%22%5C%0A%23%C3%A9@127.0.0.1:{port}/1", folder)
    with server:
        assert ping(server.url)
        with redis.Redis(port=port, password=secret) as client:
            assert client.ping()
        with redis.Redis(port=port) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        assert server.pid is not None
        for process in household(server.pid):
            assert "#é" not in " ".join(process.cmdline())
        assert not (folder / "valkey.conf").exists()


def test_the_configuration_is_readable_by_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "valkey.conf"
    path.write_text("left over")
    path.chmod(0o644)
    babysitter.write_config(path, {"requirepass": ['a"\\\n b']})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == 'requirepass "a\\x22\\x5c\\x0a b"\n'
