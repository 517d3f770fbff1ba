"""What `make test` runs: the tests on the built wheel, out of reach of the checkout.

    python tests/wheel_run.py [--python PATH] [--only STAGE]... [--keep] [-- PYTEST ARGUMENTS]

In a new temporary folder: a copy of the checkout, a virtual environment, the sdist, the wheel from
the sdist. A flat `fastq/` beside the tests would shadow the installed one, so they run elsewhere.
Stages, in order: lint, types, tests, debug (core tests with bounds checked and live objects
counted), py313 (types and part of the tests on a newer Python, with the oldest redis-py). Only on
demand: bench, sanitize, soak (the tests that gain by being long, at length).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
RUN_OUTSIDE = ("tests", "benches", "examples", "docs", "pyproject.toml", "README.md")
NOT_SOURCE = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "_core.c", "_core.html"
)
NEWER = "3.13"
NEWER_TESTS = "core or typing_checks or faults"
# By files, since those that share a file share its servers. They wait more than they compute.
PARALLEL = ("-n", "3", "--dist", "loadfile", "--benchmark-disable")
OLDEST_REDIS_PY = "redis==5.0.*"
NO_TESTS = 5
SOAKED = ("tests/test_killed_leader.py", "tests/test_one_place.py")

Word = str | Path
Variables = dict[str, str]
# What to call it, and the command.
Check = tuple[str, tuple[Word, ...]]


class StageFailed(Exception):
    """What failed, in a few words, after its own output was shown."""

    def __init__(self, what: str, code: int | None = None) -> None:
        super().__init__(what if code is None else f"{what} (exit {code})")
        self.code = code


def say(text: str) -> None:
    print(f"== {text}", flush=True)


def run(*command: Word, what: str, cwd: Path | None = None, env: Variables | None = None) -> None:
    """Raises StageFailed."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    # Some tools start others of their environment by name, cython-lint its pycodestyle.
    inherited["PATH"] = f"{Path(command[0]).parent}{os.pathsep}{inherited['PATH']}"
    if code := subprocess.call(command, cwd=cwd, env=inherited | (env or {})):
        raise StageFailed(what, code)


class Environment:
    """A virtual environment in `folder`, able to build the wheel without an isolation's cost."""

    def __init__(self, folder: Path, base: Word) -> None:
        say(f"virtual environment of {base}")
        self.folder = folder
        self.bin = folder / "bin"
        self.python = self.bin / "python"
        run(base, "-m", "venv", folder, what="venv")
        self.pip("install", *build_requirements())

    def pip(self, *args: Word, env: Variables | None = None) -> None:
        quiet = ("-qq", "--disable-pip-version-check", "--no-input")
        run(self.python, "-m", "pip", *quiet, *args, what=f"pip {args[0]}", env=env)

    def install(self, sdist: Path, *requirements: str) -> None:
        """Builds the sdist's wheel and installs it; `{}` in a requirement is the wheel's path."""
        wheels = self.folder / "wheels"
        say(f"wheel from {sdist.name}")
        self.pip("wheel", "--no-deps", "--no-build-isolation", "-w", wheels, sdist)
        wheel = only_file(wheels, "*.whl")
        say(f"install {' '.join(requirements).format(wheel.name)}")
        self.pip("install", *(requirement.format(wheel) for requirement in requirements))

    @property
    def site_packages(self) -> str:
        return str(only_file(self.folder / "lib", "python3.*/site-packages"))


class Workplace:
    """The temporary folder: 1. a copy of the checkout, 2. the sdist, 3. the environments."""

    def __init__(self, folder: Path, python: Word, pytest_args: list[str]) -> None:
        self.folder = folder
        self.python = python
        self.pytest_args = pytest_args
        self.source = folder / "source"
        self.outside = folder / "outside"
        shutil.copytree(CHECKOUT, self.source, ignore=NOT_SOURCE)
        self.outside.mkdir()
        for name in RUN_OUTSIDE:
            copy(self.source / name, self.outside / name)

    @cached_property
    def _builder(self) -> Environment:
        return Environment(self.folder / "venv", self.python)

    @cached_property
    def sdist(self) -> Path:
        say("sdist")
        build = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
        command: list[Word] = [self._builder.python, "-c", build, self.folder]
        done = subprocess.run(command, cwd=self.source, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout, done.stderr)
            raise StageFailed("sdist", done.returncode)
        return only_file(self.folder, "*.tar.gz")

    @cached_property
    def env(self) -> Environment:
        """With the wheel, and all that the tests and the checks need."""
        self._builder.install(self.sdist, "{}[test,check]")
        return self._builder

    def newer(self, base: Word) -> Environment:
        env = Environment(self.folder / "venv-newer", base)
        env.install(self.sdist, "{}[test]", OLDEST_REDIS_PY)
        return env

    def pytest(self, env: Environment, *args: Word, more: Variables | None = None) -> None:
        self._tests(env.python, "-m", "pytest", *args, more=more)

    def covered_pytest(self, env: Environment) -> None:
        coverage = (env.python, "-m", "coverage")
        self._tests(*coverage, "run", "-m", "pytest", *PARALLEL)
        say("coverage of the installed fastq, branches included")
        # In the copy of the checkout, which has the files under shorter names.
        run(*coverage, "combine", "-q", self.outside, what="coverage combine", cwd=self.source)
        run(*coverage, "report", what="coverage report", cwd=self.source)

    def _tests(self, *command: Word, more: Variables | None = None) -> None:
        say(" ".join(map(str, (*command[2:], *self.pytest_args))))
        told = {"FASTQ_INSTALLED": "1", "FASTQ_SOURCE": str(self.source)}
        variables = told | (more or {})
        try:
            run(*command, *self.pytest_args, what="pytest", cwd=self.outside, env=variables)
        except StageFailed as failure:
            # Arguments of the caller's own may leave a stage without tests.
            if not (self.pytest_args and failure.code == NO_TESTS):
                raise


def lint(place: Workplace) -> None:
    ruff = place.env.bin / "ruff"
    run_all(
        place.source,
        ("ruff format", (ruff, "format", "--check", ".")),
        ("ruff check", (ruff, "check", ".")),
        ("cython-lint", (place.env.bin / "cython-lint", "fastq")),
    )


def types(place: Workplace) -> None:
    stubtest = (place.env.python, "-m", "mypy.stubtest", "fastq._core")
    run_all(
        place.outside,
        *type_checks(place.env, place.env.python),
        ("stubtest of fastq._core", (*stubtest, "--allowlist", "tests/stubtest_allowlist.txt")),
    )


def type_checks(tools: Environment, python: Path) -> list[Check]:
    """What the checkers say of the packages that `python` has installed."""
    mypy = (tools.python, "-m", "mypy", "--python-executable", python)
    pyright = (tools.bin / "pyright", "--pythonpath", python)
    return [
        ("mypy of fastq", (*mypy, "-p", "fastq")),
        ("mypy of tests/typing", (*mypy, "tests/typing")),
        ("pyright of tests/typing", (*pyright, "tests/typing")),
    ]


def run_all(cwd: Path, *checks: Check) -> None:
    """Each, also after one has failed, so that one run shows all there is to mend."""
    failed = []
    for name, command in checks:
        say(name)
        try:
            run(*command, what=name, cwd=cwd)
        except StageFailed as failure:
            failed.append(str(failure))
    if failed:
        raise StageFailed(", ".join(failed))


def tests(place: Workplace) -> None:
    place.covered_pytest(place.env)


def bench(place: Workplace) -> None:
    place.pytest(place.env, "benches")


def soak(place: Workplace) -> None:
    at_length = {"FASTQ_KILLS": "20", "FASTQ_KILL_JOBS": "5000", "FASTQ_HISTORIES": "5000"}
    place.pytest(place.env, "-s", *SOAKED, more=at_length)
    for words in (("lateness",), ("crowd", "--jobs", "1000000"), ("idle",)):
        say(f"deferred.py {' '.join(words)}")
        command = (place.env.python, "benches/deferred.py", *words)
        run(*command, what=f"deferred.py {words[0]}", cwd=place.outside)


def debug(place: Workplace) -> None:
    variant(place, {"FASTQ_DEBUG": "1"}, {})


def sanitize(place: Workplace) -> None:
    checks = {
        **preload(),
        # Python keeps some objects until it ends, which is no leak of ours, and its own allocator
        # would hide a use after free inside an arena.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",
    }
    variant(place, {"FASTQ_DEBUG": "1", "FASTQ_SANITIZE": "1"}, checks)


def variant(place: Workplace, switches: Variables, more: Variables) -> None:
    """Core tests on another build of the core, which comes before the wheel on sys.path."""
    target = place.folder / "-".join(switches)
    say(f"build with {' '.join(switches)}")
    options = ("--no-deps", "--no-build-isolation", "--target", target)
    place.env.pip("install", *options, place.sdist, env=switches)
    variables = {**switches, "PYTHONPATH": str(target), **more}
    place.pytest(place.env, "-m", "core", more=variables)


def preload() -> Variables:
    """The sanitizer's run-time library, first in a process whose executable is not ours."""
    name = "LD_PRELOAD" if sys.platform == "linux" else "DYLD_INSERT_LIBRARIES"
    library = "libasan.so" if sys.platform == "linux" else "libclang_rt.asan_osx_dynamic.dylib"
    command = ["cc", f"-print-file-name={library}"]
    return {name: subprocess.check_output(command, text=True).strip()}


def py313(place: Workplace) -> None:
    base = find_newer()
    if base is None:
        say(f"left out: no Python {NEWER} here that runs")
        return
    newer = place.newer(base)
    run_all(place.outside, *type_checks(place.env, newer.python))
    # Some of the servers' packages have no wheel for the newer Python.
    lent = {"FASTQ_SERVERS_FROM": place.env.site_packages}
    place.pytest(newer, *PARALLEL, "-m", NEWER_TESTS, more=lent)


def find_newer() -> Path | None:
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{NEWER}*/bin/python{NEWER}"))
    on_path = shutil.which(f"python{NEWER}")
    return next(filter(runs_newer, [*pyenv, *([Path(on_path)] if on_path else [])]), None)


def runs_newer(python: Path) -> bool:
    """A shim of a version manager may be there and fail, or start another version."""
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", show], capture_output=True, text=True)
    return done.stdout.strip() == NEWER


def build_requirements() -> list[str]:
    parsed = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    return list(parsed["build-system"]["requires"])


def only_file(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.is_file():
        shutil.copy(source, target)


STAGES: dict[str, Callable[[Workplace], None]] = {
    "lint": lint,
    "types": types,
    "tests": tests,
    "debug": debug,
    "py313": py313,
    "bench": bench,
    "soak": soak,
    "sanitize": sanitize,
}
DEFAULT = ["lint", "types", "tests", "debug", "py313"]
# What these find is shown together; nothing later runs on code that they refuse.
STATIC = {"lint", "types"}


def main() -> int:
    options = parse(sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix="fastq-wheel-"))
    say(f"in {folder}")
    try:
        place = Workplace(folder, options.python, options.pytest_args)
        return run_stages(place, options.only or DEFAULT)
    except KeyboardInterrupt:
        return 130
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The tests, on the built wheel.")
    parser.add_argument("--python", default=sys.executable, help="interpreter to test with")
    parser.add_argument("--only", action="append", choices=STAGES, help="may be given repeatedly")
    parser.add_argument("--keep", action="store_true", help="keep the temporary folder")
    parser.add_argument("pytest_args", nargs="*", help="after --: passed on to pytest")
    return parser.parse_args(args)


def run_stages(place: Workplace, names: list[str]) -> int:
    failed = False
    for name in names:
        if failed and name not in STATIC:
            break
        begun = time.monotonic()
        try:
            STAGES[name](place)
            say(f"{name}: passed in {time.monotonic() - begun:.0f} s")
        except StageFailed as failure:
            failed = True
            say(f"{name}: FAILED: {failure}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
