"""The compiled core; everything else is in pyproject.toml.

Switches, by environment: FASTQ_DEBUG=1 checks bounds and counts live objects, FASTQ_SANITIZE=1
builds with ASan and UBSan, FASTQ_COVERAGE=1 lets coverage.py trace the Cython lines.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DEBUG, SANITIZE, COVERAGE = (
    os.environ.get(f"FASTQ_{switch}", "0") not in ("", "0")
    for switch in ("DEBUG", "SANITIZE", "COVERAGE")
)
MACROS = [("FASTQ_DEBUG", DEBUG), ("CYTHON_TRACE", COVERAGE)]

if sys.platform == "win32":
    sys.exit("fastq runs on Linux and macOS only (uvloop, signals, sockets): on Windows use WSL")


def compile_args() -> list[str]:
    if SANITIZE:
        checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
        return ["-O1", "-g", "-fno-omit-frame-pointer", *checks]
    # -g0 against the -g that Python itself was built with, which would be most of the wheel.
    return ["-O0", "-g"] if DEBUG else ["-g0"]


def link_args() -> list[str]:
    if SANITIZE:
        return ["-fsanitize=address,undefined"]
    # Apple's linker leaves debug info in the object files, and has no -s.
    return ["-s"] if sys.platform == "linux" and not DEBUG else []


class BuildCore(build_ext):
    """Cythonizes while it builds, so that the sdist holds the .pyx and no generated .c."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # A generated .c must win over nothing: not over an edited .pxd or another switch, which
        # its time stamp does not show, and not over the .pyx that it would lie beside.
        self.force = True
        self.cython_c_in_temp = True
        self.cython_directives = {"boundscheck": DEBUG or SANITIZE, "linetrace": COVERAGE}

    def build_extensions(self) -> None:
        compiler = self.compiler.compiler_so[0]
        if not shutil.which(compiler):
            sys.exit(f"missing: a C compiler ({compiler})")
        if not Path(sysconfig.get_path("include"), "Python.h").exists():
            sys.exit("missing: Python.h, the headers of this Python (on Debian: python3-dev)")
        super().build_extensions()


core = Extension(
    "fastq._core",
    ["fastq/_core.pyx"],
    depends=["fastq/_core.pxd"],
    define_macros=[(name, "1") for name, on in MACROS if on],
    extra_compile_args=compile_args(),
    extra_link_args=link_args(),
)
setup(ext_modules=[core], cmdclass={"build_ext": BuildCore})
