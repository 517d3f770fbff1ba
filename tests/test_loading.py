"""Settings by path, as on the command line."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastq import ConfigError
from fastq.loading import load_settings
from fastq.settings import Settings

GOOD = """
from fastq import WorkerSettings

async def add(x: int) -> int:
    return x

class Worker(WorkerSettings):
    functions = [add]
    max_jobs = 7

class Group:
    Inner = Worker

made = Worker()
functions = [add]
max_jobs = 8
"""

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module into the current directory, which is a new one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    return write


@pytest.mark.parametrize(
    ("path", "max_jobs"),
    [
        ("good_settings:Worker", 7),
        ("good_settings.Worker", 7),
        ("good_settings:Group.Inner", 7),
        ("good_settings:made", 7),
        ("good_settings", 8),
        ("folder.good_settings:Worker", 7),
        ("folder.good_settings.Worker", 7),
        ("folder.good_settings", 8),
    ],
)
def test_a_path_names_a_class_an_instance_or_a_module(
    write: Write, path: str, max_jobs: int
) -> None:
    write("good_settings.py", GOOD)
    write("folder/good_settings.py", GOOD)
    assert Settings.read(load_settings(path)).max_jobs == max_jobs


def test_the_current_directory_comes_first(write: Write, tmp_path: Path) -> None:
    write("json.py", GOOD)
    write("elsewhere/good_settings.py", "raise RuntimeError")
    write("good_settings.py", GOOD)
    sys.path.insert(0, str(tmp_path / "elsewhere"))
    assert load_settings("good_settings:made").max_jobs == 7
    assert sys.path[0] == str(tmp_path)


NOT_THERE = (
    "there is no module {module!r} in {cwd} or on Python's path. Name settings as module:Name,"
    " from the folder that has the module."
)
NO_NAME = "Name settings as module:Name."


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere:Worker", "{path}: " + NOT_THERE.replace("{module!r}", "'nowhere'")),
        ("nowhere", "{path}: " + NOT_THERE.replace("{module!r}", "'nowhere'")),
        ("nowhere.Worker", "{path}: " + NOT_THERE.replace("{module!r}", "'nowhere'")),
        ("folder.no:Worker", "{path}: " + NOT_THERE.replace("{module!r}", "'folder.no'")),
        ("good_settings:Wrong", "{path}: good_settings has no 'Wrong'. " + NO_NAME),
        ("good_settings.Wrong", "{path}: good_settings has no 'Wrong'. " + NO_NAME),
        ("good_settings:Worker.no", "{path}: good_settings has no 'Worker.no'. " + NO_NAME),
        ("good_settings.py", "{path}: good_settings has no 'py'. " + NO_NAME),
        ("", "'' names no settings. Name them as module:Name."),
        (":Worker", "':Worker' names no settings. Name them as module:Name."),
        (".good_settings:Worker", "{path!r} names no settings. Name them as module:Name."),
        ("...", "'...' names no settings. Name them as module:Name."),
    ],
)
def test_what_is_not_there_is_named(write: Write, tmp_path: Path, path: str, message: str) -> None:
    write("good_settings.py", GOOD)
    write("folder/other.py", "")
    with pytest.raises(ConfigError) as wrong:
        load_settings(path)
    assert str(wrong.value) == message.format(path=path, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("import fastq\n1 / 0\n", 2, "ZeroDivisionError: division by zero"),
        ("\n\nimport not_installed\n", 3, "No module named 'not_installed'"),
        (
            "from fastq import nothing\n",
            1,
            "ImportError: cannot import name 'nothing' from 'fastq'",
        ),
        ("import helper\n", 0, "ValueError: of the helper"),
        ("import asyncio\nasyncio.run(5)\n", 0, "ValueError: a coroutine was expected, got 5"),
    ],
)
@pytest.mark.parametrize("module", ["bad", "package.bad"])
@pytest.mark.parametrize("name", [":Worker", ".Worker", ""])
def test_an_error_in_the_users_module_names_file_and_line(
    write: Write, tmp_path: Path, text: str, line: int, message: str, module: str, name: str
) -> None:
    file = module.replace(".", "/") + ".py"
    write(file, text)
    write("helper.py", "\ndef go():\n    raise ValueError('of the helper')\n\ngo()\n")
    with pytest.raises(ConfigError) as wrong:
        load_settings(module + name)
    where = f"{tmp_path / file}, line {line}: " if line else ", line "
    if "helper" in text:
        where = f"{tmp_path / 'helper.py'}, line 3: "
    assert str(wrong.value).startswith(f"{module}{name}: ")
    assert where in str(wrong.value)
    assert message in str(wrong.value)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize("name", [":Worker", ".Worker", ""])
def test_a_syntax_error_names_file_and_line(write: Write, name: str) -> None:
    write("mistyped.py", "import fastq\nclass Worker(:\n")
    write("broken/__init__.py", "import fastq\nclass Worker(:\n")
    write("broken/settings.py", GOOD)
    for module, file in (("mistyped", "mistyped.py"), ("broken.settings", "__init__.py")):
        with pytest.raises(ConfigError, match=rf"SyntaxError: .* \({file}, line 2\)$"):
            load_settings(module + name)


def test_a_package_that_raises_is_told_like_a_module(write: Write, tmp_path: Path) -> None:
    write("raising/__init__.py", "raise OSError('no disk')\n")
    write("raising/settings.py", GOOD)
    for name in ("raising.settings:Worker", "raising.settings.Worker", "raising.settings"):
        with pytest.raises(ConfigError) as wrong:
            load_settings(name)
        file = tmp_path / "raising" / "__init__.py"
        assert str(wrong.value) == f"{name}: {file}, line 1: OSError: no disk"
