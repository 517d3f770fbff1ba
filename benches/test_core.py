"""The compiled core alone, without server or socket: `pytest benches/test_core.py`.

Each figure is for 1,000 jobs, so milliseconds read as microseconds a job. To compare with a stored
run: `--benchmark-autosave`, then `--benchmark-compare`.
"""

# mypy: allow-untyped-calls
# pytest-benchmark has no annotations on `pedantic`.

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvloop
from pytest_benchmark.fixture import BenchmarkFixture

from fastq._core import (
    CallbackWaiter,
    Function,
    Keep,
    Run,
    RunningSet,
    SettleBatch,
    SettleQueue,
    Wire,
    XaddTemplate,
    pack,
)
from floor import PAYLOAD, entry_ids, task_maker
from wire import pack as plain_pack

JOBS = 1_000
STREAM, GROUP, RESULTS = b"{fastq:bench}:stream", b"fastq", b"{fastq:bench}:result:"
IDS = list(entry_ids(JOBS))

pytestmark = pytest.mark.benchmark(max_time=0.5, min_rounds=5, warmup=True, warmup_iterations=3)


async def noop() -> None:
    return None


def decode(payload: bytes | None) -> tuple[tuple[object, ...], dict[str, object] | None]:
    return (), None


class Loop:
    """The core as a worker wires it: entries in, runs, settles out; no executor, no socket."""

    def __init__(
        self,
        execute: Callable[[Run], Any],
        spawn: Callable[..., Any],
        done: Callable[[SettleBatch, Any], object] | None = None,
    ) -> None:
        function = Function("noop", noop, decode, keep=Keep(600_000), execute=execute)
        self.running = RunningSet(
            JOBS, {b"noop": function}, spawn=spawn, refuse=self.refuse, configure=self.refuse
        )
        self.settles = SettleQueue(
            self.running,
            *(STREAM, GROUP, RESULTS),
            wake=self.ignore,
            done=done or self.ignore,
            own=self.ignore,
        )

    def start(self, entries: list[Any]) -> None:
        self.running.start(entries)
        while self.running.start_waiting():
            pass

    def settle(self) -> SettleBatch:
        for run in self.running:
            self.settles.complete(run, b"null")
        return self.taken()

    def taken(self) -> SettleBatch:
        batch = self.settles.take()
        assert batch is not None
        assert len(batch) == JOBS
        return batch

    @staticmethod
    def ignore(*_: object, **__: object) -> None:
        return None

    @staticmethod
    def refuse(run: Run, error: Exception | None = None) -> None:
        raise AssertionError(f"{run.id!r} was refused: {error!r}")


def still() -> Loop:
    """Runs start and do nothing, so that only the core's own work is timed."""
    return Loop(execute=Loop.ignore, spawn=Loop.ignore)


def entries() -> list[list[Any]]:
    return [[entry_id, [b"f", b"noop", b"d", PAYLOAD]] for entry_id in IDS]


def read_reply() -> bytes:
    fields = plain_pack("f", "noop", "d", PAYLOAD)
    packed = b"".join(b"*2\r\n$%d\r\n%b\r\n%b" % (len(i), i, fields) for i in IDS)
    return b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n%b" % (len(STREAM), STREAM, JOBS, packed)


def settle_reply() -> bytes:
    queued = b"+QUEUED\r\n" * (JOBS + 2)
    done = b"*%d\r\n" % (JOBS + 2) + b"+OK\r\n" * JOBS + b":%d\r\n" % JOBS * 2
    return b"+OK\r\n" + queued + done


def feed(wire: Wire, request: bytes, reply: bytes) -> list[Any]:
    """As a socket does: pieces of 256 KiB."""
    replies: list[Any] = []
    wire.send(request, CallbackWaiter(replies.append))
    wire.take_output()
    for start in range(0, len(reply), 1 << 18):
        wire.feed(reply[start : start + (1 << 18)])
    return replies


def test_packs_1000_enqueues(benchmark: BenchmarkFixture) -> None:
    template = XaddTemplate(STREAM, b"noop")
    packed = benchmark(lambda: [template.pack(PAYLOAD) for _ in range(JOBS)])
    assert packed[0] == pack(b"XADD", STREAM, b"*", b"f", b"noop", b"d", PAYLOAD)


def test_packs_an_xack_of_1000_ids(benchmark: BenchmarkFixture) -> None:
    packed = benchmark(partial(pack, b"XACK", STREAM, GROUP, *IDS))
    assert packed == plain_pack(b"XACK", STREAM, GROUP, *IDS)


def test_parses_a_read_of_1000_entries(benchmark: BenchmarkFixture) -> None:
    replies = benchmark(partial(feed, Wire(), b"", read_reply()))
    assert replies[0][0][1] == entries()


def test_starts_1000_entries(benchmark: BenchmarkFixture) -> None:
    def fresh() -> tuple[tuple[Loop, list[Any]], dict[str, Any]]:
        return (still(), entries()), {}

    benchmark.pedantic(Loop.start, setup=fresh, rounds=50, warmup_rounds=3)


def test_settles_1000_runs(benchmark: BenchmarkFixture) -> None:
    def fresh() -> tuple[tuple[Loop], dict[str, Any]]:
        loop = still()
        loop.start(entries())
        return (loop,), {}

    packed = benchmark.pedantic(
        lambda loop: loop.settle().pack(), setup=fresh, rounds=50, warmup_rounds=3
    )
    assert packed.count(b"\r\nSET\r\n") == JOBS


def test_takes_the_replies_to_1000_settles(benchmark: BenchmarkFixture) -> None:
    wire, reply = Wire(), settle_reply()
    answers: list[Any] = []
    loop = Loop(Loop.ignore, Loop.ignore, done=lambda _, answer: answers.append(answer))
    loop.start(entries())
    batch = loop.settle()

    def answered() -> None:
        wire.send(batch.pack(), batch)
        wire.take_output()
        wire.feed(reply)

    benchmark(answered)
    assert answers[-1] == [b"OK"] * JOBS + [JOBS] * 2


def test_runs_1000_jobs_from_read_to_settle(benchmark: BenchmarkFixture) -> None:
    """Reply in, tasks of asyncio on uvloop, packed settles out: a worker without its sockets."""
    reply = read_reply()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        packed = benchmark(lambda: runner.run(read_run_settle(reply)))
    assert packed.count(b"\r\nSET\r\n") == JOBS


async def read_run_settle(reply: bytes) -> bytes:
    create = task_maker(asyncio.get_running_loop())

    async def execute(run: Run) -> None:
        await run.call()
        loop.settles.complete(run, b"null")

    loop = Loop(execute, lambda coroutine, name: create(coroutine))
    [[[_, read]]] = feed(Wire(), b"", reply)
    loop.start(read)
    await asyncio.sleep(0)
    return loop.taken().pack()
