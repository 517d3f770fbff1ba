"""The floor: what no queue of this design can beat on this machine.

1. The server alone: XREADGROUP, SET EX, XACK and XDEL, packed beforehand and written to bare
   sockets at the worker's batch size, over a stream filled beforehand. Server CPU a job.
2. asyncio alone: a coroutine that does nothing made a task, orjson in and out. Process CPU a job.

A worker and its server run on two cores, so the floor in jobs/s is one over the dearer of the two.

    python benches/floor.py [--jobs N] [--batch 25 1000] [--repeats R] [--server NAME] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import orjson
import uvloop

from measured import DEFAULT, NAMES, MeasuredServer
from report import emit, machine_line, table, versions
from wire import Wire, pack

STREAM = "{fastq:floor}:stream"
CONSUMER = "host:12345:0a1b2c3d"
PAYLOAD = b"[[],{}]"
# As long as a real outcome: status, value, start, finish, tries.
RESULT = b'["complete",null,1700000000000,1700000000001,1]'
FIRST_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Floor:
    """CPU µs a job of the two sides at one batch size."""

    batch: int
    server_us: float
    asyncio_us: float

    @property
    def jobs_s(self) -> float:
        return 1e6 / max(self.server_us, self.asyncio_us)

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "jobs_s": self.jobs_s}


def measure_floor(
    server: MeasuredServer, batch: int, jobs: int = 100_000, repeats: int = 3
) -> Floor:
    """Medians over `repeats`. Empties the server, before and after."""
    rounds = [measure_once(server, batch, jobs) for _ in range(repeats)]
    return Floor(batch, median(r.server_us for r in rounds), median(r.asyncio_us for r in rounds))


def measure_once(server: MeasuredServer, batch: int, jobs: int) -> Floor:
    return Floor(batch, server_us(server, batch, jobs), asyncio_us(batch, jobs))


# The server's side


def server_us(server: MeasuredServer, batch: int, jobs: int) -> float:
    server.empty()
    ids = list(entry_ids(jobs // batch * batch))
    _fill(server, ids)
    settles = [_settle(ids[i : i + batch]) for i in range(0, len(ids), batch)]
    reader, writer = Wire(server.port), Wire(server.port)
    before = server.cpu_s()
    _drain(reader, writer, settles, batch)
    spent = server.cpu_s() - before
    for wire in (reader, writer):
        wire.close()
    if server.wire.call("XLEN", STREAM) or server.wire.call("XPENDING", STREAM, "fastq")[0]:
        raise RuntimeError("the floor did not settle all that it read")
    server.empty()
    return spent / len(ids) * 1e6


def entry_ids(count: int) -> Iterator[bytes]:
    """Ids of one length, so that all replies have a known one; 100 to a ms, as under load."""
    return (b"%d-%d" % (FIRST_MS + i // 100, 100 + i % 100) for i in range(count))


def _fill(server: MeasuredServer, ids: list[bytes]) -> None:
    server.wire.call("XGROUP", "CREATE", STREAM, "fastq", "0", "MKSTREAM")
    for start in range(0, len(ids), 1_000):
        part = ids[start : start + 1_000]
        server.wire.calls([("XADD", STREAM, i, "f", "noop", "d", PAYLOAD) for i in part])


def _drain(reader: Wire, writer: Wire, settles: list[tuple[bytes, int]], batch: int) -> None:
    # As in the worker: a batch is settled on one connection while the next is read on another.
    read = pack("XREADGROUP", "GROUP", "fastq", CONSUMER, "COUNT", batch, "STREAMS", STREAM, ">")
    read_size = len(_read_reply(next(entry_ids(1)), batch))
    reader.send(read)
    reader.skip(read_size)
    for number, (settle, settle_size) in enumerate(settles, 1):
        writer.send(settle)
        if number < len(settles):
            reader.send(read)
            reader.skip(read_size)
        writer.skip(settle_size)


def _settle(ids: list[bytes]) -> tuple[bytes, int]:
    """One batch's commands, and how long the replies to them are."""
    sets = [pack("SET", b"{fastq:floor}:result:" + i, RESULT, "EX", 600) for i in ids]
    sets += [pack("XACK", STREAM, "fastq", *ids), pack("XDEL", STREAM, *ids)]
    return b"".join(sets), len(b"+OK\r\n") * len(ids) + 2 * len(b":%d\r\n" % len(ids))


def _read_reply(entry_id: bytes, batch: int) -> bytes:
    fields = pack("f", "noop", "d", PAYLOAD)
    entry = b"*2\r\n$%d\r\n%b\r\n%b" % (len(entry_id), entry_id, fields)
    head = b"*1\r\n*2\r\n$%d\r\n%b\r\n*%d\r\n" % (len(STREAM), STREAM.encode(), batch)
    return head + entry * batch


# asyncio's side


async def noop() -> None:
    return None


def asyncio_us(batch: int, jobs: int) -> float:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run_batches(batch, batch * 20))  # warm caches and the specialising interpreter
        before = time.process_time()
        ran = runner.run(_run_batches(batch, jobs))
        return (time.process_time() - before) / ran * 1e6


async def _run_batches(batch: int, jobs: int) -> int:
    create = task_maker(asyncio.get_running_loop())
    loads, dumps = orjson.loads, orjson.dumps
    for _ in range(jobs // batch):
        tasks = []
        for _ in range(batch):
            args, kwargs = loads(PAYLOAD)
            tasks.append(create(noop(*args, **kwargs)))
        await asyncio.sleep(0)  # each task runs in this turn, unless it was eager
        for task in tasks:
            dumps(task.result())
    return jobs // batch * batch


def task_maker(
    loop: asyncio.AbstractEventLoop,
) -> Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]:
    if sys.version_info >= (3, 12):
        return partial(asyncio.Task, loop=loop, eager_start=True)
    return loop.create_task


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What the server and asyncio alone cost a job.")
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[25, 1_000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--server", choices=NAMES, default=DEFAULT)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    with MeasuredServer(options.server) as server:
        floors = [measure_floor(server, b, options.jobs, options.repeats) for b in options.batch]
    rows = [floor.as_dict() for floor in floors]
    machine = f"{machine_line(server.version)}, {versions('uvloop', 'orjson')}"
    emit(options.json, {"machine": machine, "floor": rows}, lambda: f"{table(rows)}\n{machine}")


if __name__ == "__main__":
    main()
