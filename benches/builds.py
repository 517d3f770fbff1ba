"""A commit of this repository, or the uncommitted tree, as a wheel in an environment of its own."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from pathlib import Path

from processes import HERE, Side

WORKTREE = "WORKTREE"


class Build:
    """One side of a comparison. 1. copies the sources, 2. builds the wheel, 3. installs it."""

    def __init__(self, name: str, folder: Path, repository: Path = HERE.parent) -> None:
        self.name = name
        self._repository = repository
        self._source = folder / "source"
        self._wheels = folder / "wheels"
        self._environment = folder / "venv"

    def side(self) -> Side:
        self._source.mkdir(parents=True)
        if self.name == WORKTREE:
            self._copy_worktree()
        else:
            self._unpack_commit()
        wheel = self._wheel()
        venv.create(self._environment, with_pip=True)
        side = Side(self._environment / "bin" / "python")
        _run([side.python, "-m", "pip", "install", "--quiet", wheel])
        return side

    def _unpack_commit(self) -> None:
        archive = _run(["git", "-C", self._repository, "archive", self.name])
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(self._source, filter="data")

    def _copy_worktree(self) -> None:
        # New files too, but nothing ignored: no stale extension module gets into the wheel.
        words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = _run(["git", "-C", self._repository, *words])
        for raw in filter(None, listed.split(b"\0")):
            path = os.fsdecode(raw)
            if (self._repository / path).is_file():
                (self._source / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(self._repository / path, self._source / path)

    def _wheel(self) -> Path:
        words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(self._wheels)]
        _run([sys.executable, *words, self._source])
        return next(self._wheels.glob("*.whl"))


def _run(command: Sequence[str | Path]) -> bytes:
    ran = subprocess.run(command, capture_output=True)
    if ran.returncode:
        said = ran.stderr.decode(errors="replace")[-3_000:]
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{said}")
    return ran.stdout
