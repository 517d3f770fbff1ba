"""Cron entries on workers: each tick once, by the server's clock, for as long as they are there."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

import fastq
from commands import commands
from counted import Tally, count
from fastq import Client, Context, cron
from fastq.worker import Worker
from servers import Server
from timekeeping import ASTRAY
from waiting import eventually
from workers import Queue, settings_of, start

EVERY_SECOND = "* * * * * *"
MINUTE_MS = 60_000


class Seen:
    """Runs of a cron entry, by the ids of their jobs."""

    def __init__(self, pause_s: float = 0) -> None:
        self.runs: list[tuple[str, int, str]] = []
        self.pause_s = pause_s

    def job(self, name: str = "seen") -> Any:
        async def seen(ctx: Context, note: str = "") -> None:
            self.runs.append((ctx.job_id, int(ctx._run.entry.split(b"-")[0]), note))
            await asyncio.sleep(self.pause_s)

        return fastq.job(seen, name=name)

    @property
    def ticks(self) -> list[int]:
        return [int(job_id.rsplit(":", 1)[1]) for job_id, _, _ in self.runs]


@contextlib.asynccontextmanager
async def fleet(server: Server, size: int, *cron_jobs: Any) -> AsyncIterator[list[Worker]]:
    """Workers with these entries."""
    settings = settings_of(server, fastq.job(count, name="other"), cron_jobs=cron_jobs)
    workers = [Worker(settings) for _ in range(size)]
    runs = [await start(worker) for worker in workers]
    yield workers
    for worker in workers:
        worker.ask_to_stop()
    await asyncio.gather(*runs)


def last_tick(server: Server, name: str) -> int:
    return int(cast(bytes, Queue(server).redis.hget("{fastq:default}:cron", name) or b"0"))


async def wind_back(server: Server, name: str, ms: int) -> None:
    """As if no worker had been there for a while."""
    seconds, micros = cast(tuple[int, int], Queue(server).redis.time())
    now_ms = seconds * 1000 + micros // 1000
    Queue(server).redis.hset("{fastq:default}:cron", name, str(now_ms - ms))


@pytest.mark.servers
async def test_each_tick_comes_once_for_three_workers(server: Server) -> None:
    seen = Seen()
    async with fleet(server, 3, cron(EVERY_SECOND, seen.job(), unique=False)) as workers:
        await eventually(lambda: len(seen.runs) >= 3, 20)
        assert sum(worker._leader.leads for worker in workers) == 1
    ticks = seen.ticks
    assert ticks == [ticks[0] + 1000 * n for n in range(len(ticks))]
    assert all(entry_ms >= tick for (_, entry_ms, _), tick in zip(seen.runs, ticks, strict=True))


async def test_a_tick_is_skipped_while_the_last_run_is_there(valkey: Server) -> None:
    seen = Seen(pause_s=2.5)
    async with fleet(valkey, 1, cron(EVERY_SECOND, seen.job(), name="slow")):
        await eventually(lambda: seen.runs, 20)
        first = last_tick(valkey, "slow")
        await eventually(lambda: last_tick(valkey, "slow") >= first + 2000, 20)
        assert len(seen.runs) == 1  # those ticks are over, and have not fired
        await eventually(lambda: len(seen.runs) == 2, 20)
    assert [job_id for job_id, _, _ in seen.runs] == ["cron:slow"] * 2


async def test_arguments_and_options_arrive(valkey: Server) -> None:
    seen, queue = Seen(), Queue(valkey)
    call = fastq.call(seen.job(), "daily").options(keep_result=0)
    async with fleet(valkey, 1, cron(EVERY_SECOND, call, name="noted", unique=False)):
        await eventually(lambda: seen.runs, 20)
    assert seen.runs[0][2] == "daily"
    assert not [key for key in sorted(queue.keys()) if ":result:cron:" in key]


@pytest.mark.parametrize("catch_up", [False, True])
async def test_missed_ticks_are_made_up_for_if_asked(valkey: Server, catch_up: bool) -> None:
    seen = Seen()
    await wind_back(valkey, "minutes", 5 * MINUTE_MS)
    entry = cron("* * * * *", seen.job(), name="minutes", unique=False, catch_up=catch_up)
    async with fleet(valkey, 1, entry):
        await eventually(lambda: len(seen.runs) >= (5 if catch_up else 1), 20)
    # A new minute may have come meanwhile.
    assert len(seen.runs) in ((5, 6) if catch_up else (1, 2))
    assert seen.ticks == sorted(set(seen.ticks))


async def test_an_entry_that_is_new_has_missed_nothing(valkey: Server) -> None:
    seen = Seen()
    async with fleet(valkey, 1, cron("* * * * *", seen.job(), name="new", catch_up=True)):
        await eventually(lambda: last_tick(valkey, "new"), 20)
    assert len(seen.runs) <= 1


async def test_an_entry_that_is_gone_from_the_settings_stops(valkey: Server) -> None:
    gone, stays = Seen(), Seen()
    both = [
        cron(EVERY_SECOND, s.job(n), name=n, unique=False) for s, n in ((gone, "a"), (stays, "b"))
    ]
    async with fleet(valkey, 1, *both):
        await eventually(lambda: gone.runs and stays.runs, 20)
    before = len(gone.runs)
    async with fleet(valkey, 1, both[1]):
        ran = len(stays.runs)
        await eventually(lambda: len(stays.runs) >= ran + 2, 20)
    assert len(gone.runs) == before


@pytest.mark.servers
async def test_one_entry_that_is_refused_holds_up_no_other(server: Server) -> None:
    """And its tick is not lost: it fires when the trouble is mended."""
    seen, broken, queue = Seen(), Seen(), Queue(server)
    record = f"{queue.base}:job:cron:broken"
    queue.redis.lpush(record, "something else")
    entries = [
        cron(EVERY_SECOND, broken.job("broken"), name="broken"),
        cron(EVERY_SECOND, seen.job(), name="well"),
    ]
    async with fleet(server, 1, *entries):
        await eventually(lambda: len(seen.runs) >= 2, 30)
        assert broken.runs == []
        queue.redis.delete(record)
        await eventually(lambda: broken.runs, 30)


@pytest.mark.faults
@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_worker_whose_own_clock_is_off_is_on_time(
    valkey: Server, tally: Tally, tmp_path: Path, hours: int
) -> None:
    """Fault 21: deferral and cron go by the server's clock alone."""
    queue = Queue(valkey)
    with commands(tmp_path) as start_command:
        environ = {ASTRAY: str(hours)}
        start_command("fastq-worker", "timekeeping:Timed", "--redis", valkey.url(), **environ)
        async with Client(valkey.url()) as client:
            await eventually(lambda: last_tick(valkey, "tick"), 60)
            job = await client.options(defer_by=0.5).enqueue(count)
            due = cast(
                list[tuple[bytes, float]],
                queue.redis.zrange(f"{queue.base}:deferred", 0, 0, withscores=True),
            )
            assert await job.result(30) == job.id
            await eventually(lambda: len(tally) >= 3, 60)
        entries = cast(dict[bytes, bytes], tally._client.hgetall("entries"))
        seconds, _ = cast(tuple[int, int], queue.redis.time())
    assert due[0][1] < (seconds + 1) * 1000
    for name, entry in entries.items():
        late_ms = int(entry.split(b"-")[0]) - int(name.rsplit(b":", 1)[1])
        assert 0 <= late_ms < MINUTE_MS
        assert abs(seconds * 1000 - int(entry.split(b"-")[0])) < MINUTE_MS
