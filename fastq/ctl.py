"""`fastqctl`: looks at queues and acts on them."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

import click

from fastq import __version__
from fastq.errors import ConfigError

USAGE = 2
INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fastqctl")
def main() -> None:
    """Look at the queues of fastq, and act on them.

    Exit codes: 0 done; 1 trouble; 2 wrong usage; 3 Redis is away; 130 after Ctrl-C.
    """


@main.command()
@click.option(
    "--jobs", type=click.IntRange(min=1), default=20_000, show_default=True, help="Jobs to run."
)
@click.option(
    "--max-jobs",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="Jobs that the worker runs at once.",
)
def demo(jobs: int, max_jobs: int) -> None:
    """Show how fast fastq is on this machine.

    Starts a Valkey of its own on a free port, enqueues jobs, and lets a fastq-worker process run
    them. Leaves nothing behind.
    """
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        # Here: the other commands load neither worker nor loop.
        from fastq.demo import run

        run(jobs, max_jobs)
    except KeyboardInterrupt:
        _end("Interrupted: the demo's worker and its server were stopped", INTERRUPTED)
    except ConfigError as error:
        _end(f"Error: {error}", USAGE)


def _interrupt_once(number: int, frame: FrameType | None) -> NoReturn:
    # What follows is stopping, which takes its time at most once.
    signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end(text: str, code: int) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(code)
