"""What is tested is the built wheel, and the wheel holds what it should."""

import os
import re
import site
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path, PurePath

import pytest

import fastq._core

pytestmark = pytest.mark.skipif(
    "FASTQ_INSTALLED" not in os.environ, reason="for an installed wheel: make test"
)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="about ELF")

CORE = Path(fastq._core.__file__)
# That of manylinux_2_28.
NEWEST_GLIBC = (2, 28)


def shipped() -> set[str]:
    """Files of the package, relative to it; byte code is pip's and not the wheel's."""
    files = [path for path in distribution("fastq-worker").files or () if path.parts[0] == "fastq"]
    return {PurePath(*path.parts[1:]).as_posix() for path in files if path.suffix != ".pyc"}


def test_the_core_under_test_is_the_installed_one() -> None:
    assert any(CORE.is_relative_to(folder) for folder in site.getsitepackages())


def test_the_wheel_holds_types_and_scripts() -> None:
    assert {"_core.pyi", "py.typed", CORE.name} <= shipped()
    source = Path(os.environ["FASTQ_SOURCE"]) / "fastq"
    scripts = {path.relative_to(source).as_posix() for path in source.glob("lua/*.lua")}
    assert scripts
    assert scripts <= shipped()


def test_the_wheel_holds_no_sources_of_the_core() -> None:
    kinds = {PurePath(name).suffix for name in shipped()}
    assert kinds <= {".py", ".pyi", ".so", ".lua", ".typed"}


@on_linux
def test_the_core_has_no_debug_info() -> None:
    # Section names are plain text in the file's own table of them.
    assert b".debug_info" not in CORE.read_bytes()


@on_linux
def test_the_core_runs_on_glibc_2_28() -> None:
    wanted = re.findall(rb"GLIBC_(\d+)\.(\d+)", CORE.read_bytes())
    assert max((int(major), int(minor)) for major, minor in wanted) <= NEWEST_GLIBC


def test_both_commands_are_installed() -> None:
    for command in ("fastq-worker", "fastqctl"):
        script = Path(sys.executable).parent / command
        done = subprocess.run([script, "--version"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert distribution("fastq-worker").version in done.stdout
