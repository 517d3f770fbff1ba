"""`fastqctl demo`: what it shows, how it fails, and that it leaves nothing behind."""

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from commands import DEADLINE_S, Command, commands, gone
from waiting import eventually_sync

Start = Callable[..., Command]

BEGINS = "A Valkey server of its own on port "
INTERRUPTED = "Interrupted: the demo's worker and its server were stopped"
# More than any machine does before it is stopped.
MANY = ("demo", "--jobs", "2000000")
FIGURES = """\
20,000 jobs, 100 at once:
  jobs/s       +[\\d,]+   by one worker process, results kept
  enqueue/s    +[\\d,]+   by enqueue_many
  latency p50  +[\\d.]+ ms   from enqueue to its result in the client, one job at a time
  latency p99  +[\\d.]+ ms   of the same
  Redis CPU    +[\\d.]+ µs   a job, from its enqueue to its end
Next: list your functions in a class Worker\\(fastq.WorkerSettings\\) in settings.py, and run \
fastq-worker settings:Worker --embedded
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `fastqctl` with these words."""
    with commands(tmp_path) as make:
        yield lambda *words, **environ: make("fastqctl", *words, **environ)


def running(demo: Command) -> list[psutil.Process]:
    """The demo's processes once its worker runs: the worker, the server and its babysitter."""

    def family() -> list[psutil.Process]:
        assert demo.process.poll() is None, demo.text
        found = demo.family()
        return found if worker_in(found) and server_in(found) else []

    demo.says(BEGINS)
    return eventually_sync(family, DEADLINE_S)


def worker_in(family: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in family if any("demo_jobs" in w for w in process.cmdline())]


def server_in(family: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in family if "valkey-server" in process.cmdline()[0]]


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if not path.name.startswith("output-")]


def test_the_demo_shows_its_figures_and_leaves_nothing(start: Start, tmp_path: Path) -> None:
    demo = start("demo")
    processes = running(demo)
    assert demo.ends() == 0
    first, *lines = demo.text.splitlines(keepends=True)
    assert re.fullmatch(rf"{BEGINS}\d+, a fastq-worker beside it\n", first)
    *progress, last = [line for line in lines if line.startswith("Jobs done: ")]
    assert last == "Jobs done: 20,000 of 20,000\n"
    assert len(progress) < 4
    assert re.fullmatch(FIGURES, "".join(lines[len(progress) + 1 :]))
    gone(processes)
    assert not left_in(tmp_path)


def test_it_runs_the_fastq_that_is_installed(start: Start, tmp_path: Path) -> None:
    # As in the folder of a checkout, whose fastq/ may not be built.
    (tmp_path / "fastq").mkdir()
    (tmp_path / "fastq" / "__init__.py").write_text("raise SystemExit('a decoy')\n")
    assert start("demo", "--jobs", "1", "--max-jobs", "1").ends() == 0


def test_python_m_fastq_is_the_same(tmp_path: Path) -> None:
    with commands(tmp_path) as make:
        demo = make("python", "-m", "fastq", "demo", "--jobs", "100", "--max-jobs", "7")
        assert demo.ends() == 0
        assert "100 jobs, 7 at once:\n" in demo.text
        assert make("python", "-m", "fastq", "--version").ends() == 0


@pytest.mark.parametrize("words", ["--jobs 0", "--max-jobs 0", "--jobs many", "--nope", "extra"])
def test_wrong_usage_exits_with_2(start: Start, words: str) -> None:
    demo = start("demo", *words.split())
    assert demo.ends() == 2
    assert "\nError: " in demo.text


@pytest.mark.faults
def test_ctrl_c_stops_all_and_exits_with_130(start: Start, tmp_path: Path) -> None:
    demo = start(*MANY)
    demo.says(BEGINS)
    processes = demo.family()
    demo.send(signal.SIGINT)
    assert demo.ends() == 130
    assert demo.text.splitlines()[1:] == [INTERRUPTED]
    gone(processes)
    assert not left_in(tmp_path)


@pytest.mark.faults
def test_ctrl_c_again_and_again_is_no_different(start: Start, tmp_path: Path) -> None:
    demo = start("demo", "--jobs", "100000")
    processes = running(demo)
    while demo.process.poll() is None:
        # As a terminal does: to all of the command's process group.
        os.killpg(demo.process.pid, signal.SIGINT)
    assert demo.ends() == 130
    assert demo.text.splitlines()[-1] == INTERRUPTED
    assert not worker_in([process for process in processes if process.is_running()])
    gone(processes)
    assert not left_in(tmp_path)


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_demo_that_is_killed(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    demo = start("demo", "--jobs", "100000")
    processes = running(demo)
    os.killpg(demo.process.pid, number)
    assert demo.ends() == -number
    gone(processes)
    eventually_sync(lambda: not left_in(tmp_path), DEADLINE_S)


@pytest.mark.faults
def test_a_worker_that_dies_fails_the_demo(start: Start) -> None:
    demo = start("demo", "--jobs", "100000")
    processes = running(demo)
    worker_in(processes)[0].kill()
    assert demo.ends() == 1
    assert "\nError: the worker ended (exit code -9); the end of its log:\n" in demo.text
    gone(processes)


@pytest.mark.faults
def test_a_server_that_dies_fails_the_demo(start: Start) -> None:
    demo = start("demo", "--jobs", "100000")
    processes = running(demo)
    server_in(processes)[0].kill()
    assert demo.ends() == 3
    assert "\nError: the demo's server is away: redis://127.0.0.1:" in demo.text
    gone(processes)


# In a terminal

_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command in a terminal of its own, which is also the one that its Ctrl-C comes from."""

    def __init__(self, *command: str) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, b"\x18\x00\x78\x00\x00\x00\x00\x00")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *command],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(terminal)
        self.text = ""

    def read_until(self, text: str) -> None:
        while text not in self.text:
            more = self._read()
            assert more, self.text
            self.text += more

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def ends(self) -> int:
        while more := self._read():
            self.text += more
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)
        os.close(self._master)

    def _read(self) -> str:
        try:
            return os.read(self._master, 65_536).decode(errors="replace")
        except OSError:  # on Linux, once nobody has the terminal open
            return ""


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*command: str) -> Terminal:
        opened.append(Terminal(*command))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


FASTQCTL = str(Path(sys.executable).with_name("fastqctl"))


def test_a_terminal_gets_a_bar(terminal: Callable[..., Terminal]) -> None:
    demo = terminal(FASTQCTL, "demo", "--jobs", "1000")
    assert demo.ends() == 0
    assert "Jobs done ━" in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", demo.text)
    assert "1000/1000" in demo.text
    assert "jobs/s" in demo.text


@pytest.mark.faults
def test_ctrl_c_in_a_terminal_stops_all(terminal: Callable[..., Terminal]) -> None:
    demo = terminal(FASTQCTL, "demo", "--jobs", "100000")
    demo.read_until("Jobs done")
    processes = psutil.Process(demo.process.pid).children(recursive=True)
    demo.press_ctrl_c()
    assert demo.ends() == 130
    assert "Traceback" not in demo.text
    assert demo.text.endswith(f"{INTERRUPTED}\r\n")
    # The cursor that the bar hid is shown again.
    assert demo.text.rindex("\x1b[?25h") > demo.text.rindex("\x1b[?25l")
    gone(processes)


# rich

_WITHOUT_RICH = "import sys; sys.modules['rich'] = None; from fastq.ctl import main; main()"


def test_without_rich_the_extra_is_named(terminal: Callable[..., Terminal]) -> None:
    demo = terminal(sys.executable, "-c", _WITHOUT_RICH, "demo")
    assert demo.ends() == 2
    assert demo.text == (
        "Error: the progress bar needs rich: pip install 'fastq-worker[embedded]'\r\n"
    )


def test_what_is_no_terminal_needs_no_rich(tmp_path: Path) -> None:
    with commands(tmp_path) as make:
        assert make("python", "-c", _WITHOUT_RICH, "demo", "--jobs", "10").ends() == 0


def test_rich_is_for_the_bar_alone() -> None:
    code = "import sys, fastq.cli, fastq.ctl, fastq.demo, fastq.demo_jobs; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "rich" not in done.stdout.split()
