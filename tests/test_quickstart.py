"""What the README and the example say works as it stands there, on every server."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands import DEADLINE_S, commands
from servers import Server

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = [
    "1 + 2 = 3",
    "fetched https://example.org/0",
    "fetched https://example.org/1",
    "fetched https://example.org/2",
    "cat.jpg.png",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the repository's folder, but without `fastq/`: it would come before the wheel."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(folder: Path, script: str, url: str) -> str:
    done = subprocess.run(
        [sys.executable, script],
        cwd=folder,
        env={**os.environ, "FASTQ_REDIS_URL": url},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.servers
def test_the_example_runs_and_its_results_come_back(folder: Path, server: Server) -> None:
    with commands(folder) as start:
        worker = start("fastq-worker", "examples.quickstart:Worker", FASTQ_REDIS_URL=server.url())
        worker.says("serves queue 'default'")
        assert run(folder, "examples/quickstart.py", server.url()).splitlines() == ANSWERS
        with server.client() as client:
            assert client.xlen("{fastq:default}:stream") == 0


def test_the_first_minute_of_the_readme(tmp_path: Path, valkey: Server) -> None:
    blocks = re.findall(r"```python\n(# (\w+\.py)\n.*?)```", (ROOT / "README.md").read_text(), re.S)
    for text, name in blocks:
        (tmp_path / name).write_text(text)
    with commands(tmp_path) as start:
        worker = start("fastq-worker", "settings:Worker", "--redis", valkey.url())
        worker.says("serves queue 'default'")
        assert run(tmp_path, "producer.py", valkey.url()) == "3\n"
