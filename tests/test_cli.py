"""`fastq-worker`: its exit codes, what it says, and how it takes signals."""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commands import DEADLINE_S, SETTINGS, Command, commands, enqueue, result, url_at, url_of
from fastq.fetcher import BLOCK_S
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


def away(port: int) -> str:
    """How the messages name a server that does not listen."""
    return f"redis://127.0.0.1:{port}/0: [Errno "


# Done


def test_a_burst_runs_what_is_queued_and_exits_with_0(
    start: Start, valkey: Server, url: str
) -> None:
    jobs = [enqueue(url, "add", n, n) for n in range(3)]
    worker = start(SETTINGS, "--burst", "--redis", url)
    assert worker.ends() == 0
    assert [result(url, job) for job in jobs] == [0, 2, 4]
    assert valkey.client().xlen("{fastq:default}:stream") == 0


def test_a_burst_of_nothing_exits_with_0(start: Start, url: str) -> None:
    assert start(SETTINGS, "--burst", "--redis", url).ends() == 0


def test_a_burst_with_a_failed_job_exits_with_1_and_says_which(start: Start, url: str) -> None:
    enqueue(url, "add", 1, 1)
    job = enqueue(url, "fail")
    worker = start(SETTINGS, "--burst", "--redis", url)
    assert worker.ends(traceback=True) == 1
    assert f"fail {job} in queue 'default' ended badly (failed): ValueError: on purpose" in (
        worker.text
    )


def test_outside_a_burst_a_failed_job_is_no_exit_code(serving: Start, url: str) -> None:
    worker = serving()
    enqueue(url, "fail")
    worker.says("ended badly")
    worker.send(signal.SIGTERM)
    assert worker.ends(traceback=True) == 0


def test_queues_names_the_queue_to_serve(start: Start, valkey: Server, url: str) -> None:
    mail = enqueue(url, "add", 1, 2, queue="mail")
    enqueue(url, "add", 1, 2)
    worker = start(SETTINGS, "--burst", "--queues", "mail", "--redis", url)
    assert worker.ends() == 0
    assert "serves queue 'mail'" in worker.text
    assert result(url, mail, queue="mail") == 3
    assert valkey.client().xlen("{fastq:default}:stream") == 1


def test_settings_are_found_in_the_current_folder(start: Start, tmp_path: Path, url: str) -> None:
    own = "from command_settings import add\nfunctions = [add]\n"
    (tmp_path / "settings.py").write_text(own)
    assert start("settings", "--burst", FASTQ_REDIS_URL=url).ends() == 0


def test_even_debug_says_no_password(start: Start, url: str) -> None:
    job = enqueue(url, "add", 1, 2)
    worker = start(SETTINGS, "--burst", "--log-level", "debug", "--redis", url)
    assert worker.ends() == 0
    assert f"add {job} ended" in worker.text


# Wrong usage


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere:Worker", "nowhere:Worker: there is no module 'nowhere' in "),
        ("command_settings:Nope", "command_settings:Nope: command_settings has no 'Nope'. Name "),
        ("command_settings:Misspelt", "has no setting 'max_job'. Did you mean 'max_jobs'?"),
        (f"{SETTINGS} --max-jobs 0", "max_jobs must be a whole number from 1 to 100000, not 0."),
        (f"{SETTINGS} --max-jobs many", "'many' is not a valid integer."),
        (f"{SETTINGS} --queues a,b", "queues names 2 queues; this version serves one a worker."),
        (f"{SETTINGS} --queues a{{b}}", "The queue name 'a{b}' has braces or control characters"),
        (f"{SETTINGS} --nope", "--nope"),
        (f"{SETTINGS} --log-level loud", "'loud' is not one of"),
        (f"{SETTINGS} --redis http://:hush@h", "The Redis URL has the scheme 'http'. Use redis:"),
        (f"{SETTINGS} --redis redis://:hush@h:x", "its host or port is malformed"),
        (f"{SETTINGS} --redis redis://:hush/hush@h", "must be encoded (/ as %2F"),
        (f"{SETTINGS} --redis redis://:hu?sh=hush@h", "must be encoded (/ as %2F"),
        (f"{SETTINGS} --redis redis://:1/hush@h", "must be encoded (/ as %2F"),
        (f"{SETTINGS} --redis redis://h/nought", "names the database 'nought', which is no number"),
        ("", "Missing argument 'SETTINGS'."),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_is_wrong(
    start: Start, words: str, message: str
) -> None:
    worker = start(*words.split())
    assert worker.ends() == 2
    last = worker.text.splitlines()[-1]
    assert last.startswith("Error: ")
    assert message in last


def test_settings_that_raise_name_the_line(start: Start, tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("import os\n1 / 0\n")
    worker = start("settings:Worker")
    assert worker.ends() == 2
    where = tmp_path.resolve() / "settings.py"
    assert worker.text == (
        f"Error: settings:Worker: {where}, line 2: ZeroDivisionError: division by zero\n"
    )


# Redis away


def test_a_burst_without_redis_exits_with_3(start: Start) -> None:
    port = free_port()
    worker = start(SETTINGS, "--burst", "--redis", url_at(port))
    assert worker.ends() == 3
    last = worker.text.splitlines()[-1]
    assert last.startswith(f"Error: Redis is away: {away(port)}")
    assert last.endswith(". Start it, or correct the URL.")


@pytest.mark.faults
def test_without_a_burst_it_tries_until_redis_is_there(start: Start) -> None:
    port = free_port()
    worker = start(SETTINGS, "--redis", url_at(port))
    worker.says(f"Redis is not to be had, trying again: {away(port)}")
    with Server(port=port) as server:
        job = enqueue(server.url(), "add", 1, 2)
        assert result(server.url(), job) == 3
        assert worker.stops() == 0
    assert worker.text.count("not to be had") == 1


@pytest.mark.faults
def test_it_stops_while_redis_is_away(start: Start) -> None:
    worker = start(SETTINGS, "--redis", url_at(free_port()))
    worker.says("Redis is not to be had")
    assert worker.stops() == 0


@pytest.mark.faults
def test_it_stops_while_redis_does_not_answer(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        worker = start(SETTINGS, "--redis", url_at(silent.getsockname()[1]))
        silent.settimeout(DEADLINE_S)
        with silent.accept()[0]:
            assert worker.stops() == 0


# Signals


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_stops_an_idle_worker(serving: Start, number: signal.Signals, code: int) -> None:
    worker = serving()
    worker.send(number)
    assert worker.ends() == code
    assert worker.text.splitlines()[-1].endswith(" stops")


def test_an_idle_worker_does_not_wait_for_its_read_to_end(serving: Start) -> None:
    def took_s() -> float:
        worker = serving()
        began_s = time.monotonic()
        assert worker.stops() == 0
        return time.monotonic() - began_s

    # Of several: on a busy machine one may take any time.
    assert any(took_s() < BLOCK_S / 10 for _ in range(5))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_hands_the_jobs_back_and_exits_with_1(
    serving: Start, tmp_path: Path, valkey: Server, url: str, number: signal.Signals
) -> None:
    worker = serving()
    job = enqueue(url, "run_on")
    eventually_sync((tmp_path / "running").exists, DEADLINE_S)
    worker.send(number)
    worker.says(" stops")
    worker.send(number)
    assert worker.ends() == 1
    assert "1 unfinished jobs were handed back" in worker.text
    pending = valkey.client().xpending_range("{fastq:default}:stream", "fastq", "-", "+", 9)
    assert [(p["consumer"], p["message_id"].decode()) for p in pending] == [(b"released", job)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    ("settings", "sign"), [("SlowStart", "starting"), ("IMPORTED_FOR_EVER", "importing")]
)
def test_a_signal_stops_a_worker_that_is_starting(
    start: Start, tmp_path: Path, settings: str, sign: str, number: signal.Signals, code: int
) -> None:
    worker = start(f"command_settings:{settings}")
    eventually_sync((tmp_path / sign).exists, DEADLINE_S)
    worker.send(number)
    assert worker.ends() == code
