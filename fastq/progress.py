"""How far something has come, shown in a terminal as a bar and elsewhere in a few lines."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import click

from fastq.errors import ConfigError

Tell = Callable[[int], object]
"""To be told how many are done."""
Progress = AbstractContextManager[Tell]

_LINES = 4


def progress(what: str, total: int) -> Progress:
    """Shows, as long as it is entered, what its `Tell` is told.

    `ConfigError` if standard output is a terminal and rich is not installed.
    """
    if not sys.stdout.isatty():
        return _lines(what, total)
    if importlib.util.find_spec("rich") is None:
        raise ConfigError("the progress bar needs rich: pip install 'fastq-worker[embedded]'")
    return _bar(what, total)


@contextmanager
def _bar(what: str, total: int) -> Iterator[Tell]:
    # Here: whoever writes into a file needs no rich.
    import rich.progress as parts

    columns = (parts.TextColumn(what), parts.BarColumn(None), parts.MofNCompleteColumn())
    with parts.Progress(*columns, parts.TimeElapsedColumn(), expand=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def _lines(what: str, total: int) -> Iterator[Tell]:
    said = 0

    def tell(done: int) -> None:
        nonlocal said
        part = done * _LINES // total
        if part > said:
            said = part
            click.echo(f"{what}: {done:,} of {total:,}")

    yield tell
