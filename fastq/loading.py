"""Finds the settings that a command line names: `module:Name`, `module.Name`, or a module."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from typing import Any

from fastq.errors import ConfigError


def load_settings(path: str) -> Any:
    """The settings object of a path. `ConfigError` says in one line why it cannot be had.

    The current directory comes first on `sys.path`, as when Python runs a script there.
    """
    if not path.partition(":")[0].replace(".", "").strip() or path.startswith("."):
        raise ConfigError(f"{path!r} names no settings. Name them as module:Name.")
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())
    module, separator, name = path.partition(":")
    if not separator:
        module, name = (path, "") if _is_module(path) else _split(path)
    found: Any = _import(module, path)
    for part in name.split(".") if name else ():
        if not hasattr(found, part):
            raise ConfigError(f"{path}: {module} has no {name!r}. Name settings as module:Name.")
        found = getattr(found, part)
    return found


def _split(path: str) -> tuple[str, str]:
    module, _, name = path.rpartition(".")
    return (module, name) if module else (path, "")


def _is_module(path: str) -> bool:
    try:
        return importlib.util.find_spec(path) is not None
    except Exception:  # the package above it is imported, which may raise anything
        return False


def _import(module: str, path: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise ConfigError(
                f"{path}: there is no module {error.name!r} in {os.getcwd()} or on Python's path. "
                "Name settings as module:Name, from the folder that has the module."
            ) from None
        raise ConfigError(f"{path}: {_where(error)}{error}") from error
    except Exception as error:
        raise ConfigError(f"{path}: {_where(error)}{type(error).__name__}: {error}") from error


def _where(error: BaseException) -> str:
    """The user's own line that was at fault."""
    frames = traceback.extract_tb(error.__traceback__)
    all_own = [f for f in frames if "importlib" not in f.filename and f.filename != __file__]
    own = [f for f in all_own if "site-packages" not in f.filename] or all_own
    return f"{own[-1].filename}, line {own[-1].lineno}: " if own else ""
