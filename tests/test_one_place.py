"""A job is in one place at any time, whatever is done to it and however often it is said.

Histories of moves (`moves.py`) on a real server, compared after each with a reference (`model.py`).
`FASTQ_HISTORIES=5000` looks further, each time at other histories.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from agreement import Agreement, Look
from model import MEMORY_MS
from moves import Moves
from servers import Server

_HISTORIES = int(os.environ.get("FASTQ_HISTORIES", 0))
# The more often a move is listed, the more often it is made. What fails is boiled down to rests.
_REST = "rest"
_MOVES = (
    *(_REST, "enqueue", "enqueue", "enqueue_itself", "enqueue_itself", "tick", "tick"),
    *(
        "read",
        "read",
        "claim",
        "usurp",
        "usurp",
        "hand_back",
        "end",
        "end",
        "end",
        "end",
        "end_all",
    ),
    *("again", "again", "again", "promote", "come_due", "advance"),
)
_LENGTH = 30
Move = tuple[str, int, int]


def _moves(data: bytes) -> list[Move]:
    """A history, of three bytes a move: all other ways to draw one were slow, or drew the same
    moves again and again.
    """
    parts = zip(data[::3], data[1::3], data[2::3], strict=True)
    moves = [(_MOVES[kind % len(_MOVES)], a, b) for kind, a, b in parts]
    return [move for move in moves if move[0] != _REST]


_HISTORY = st.binary(min_size=3 * _LENGTH, max_size=3 * _LENGTH).map(_moves)


def play(moves: Moves, history: list[Move]) -> None:
    """Makes these moves, then lets all come to its end; raises where the two disagree."""
    moves.begin()
    for number, (move, a, b) in enumerate(history, 1):
        try:
            getattr(moves, move)(a, b)
            Agreement(moves)
        except BaseException:
            note(f"Move {number} fails.")
            raise
    for _ in moves.to_the_end():
        Agreement(moves)
    _nothing_left(Look(moves))


def _nothing_left(look: Look) -> None:
    assert (look.entries, look.pending, look.deferred) == ({}, {}, {})
    for name, (ttl_ms, value) in look.keys.items():
        is_kept = name in ("stream", "dead", "cron") or name.startswith("result:")
        assert is_kept or (name.startswith("job:") and 0 < ttl_ms <= MEMORY_MS), name
        assert value != b"~", name


@contextmanager
def _on(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moves]:
    # Thousands of jobs end badly here, and each is worth a warning.
    level = logging.getLogger("fastq").level
    logging.getLogger("fastq").setLevel(logging.CRITICAL)
    try:
        with asyncio.Runner() as runner, closing(Moves(server, runner)) as moves:
            monkeypatch.setattr("fastq.producer.token_urlsafe", moves.anonymous_id)
            yield moves
    finally:
        logging.getLogger("fastq").setLevel(level)


@pytest.mark.servers
def test_a_job_is_in_one_place_whatever_is_done_to_it(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _on(server, monkeypatch) as moves:

        @settings(
            max_examples=_HISTORIES or 100,
            derandomize=not _HISTORIES,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(_HISTORY)
        def histories(history: list[Move]) -> None:
            play(moves, history)

        histories()
