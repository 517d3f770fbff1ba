"""The leader is killed again and again: no promotion and no tick is lost, doubled or late.

A job that was pending for a killed worker is in its place; who takes it up is for other tests.
"""

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import fastq
from commands import Command, commands
from counted import Tally, count
from fastq import Client
from servers import Server
from waiting import eventually
from workers import Queue

KILLS = int(os.environ.get("FASTQ_KILLS", "3"))
JOBS = int(os.environ.get("FASTQ_KILL_JOBS", "600"))
WORKERS = 3
MAY_BE_LATE_MS = 4_000
DEADLINE_S = 90


class Fleet:
    """Workers in processes of their own, by pid."""

    def __init__(self, start: Callable[..., Command], server: Server) -> None:
        self._start = start
        self._url = server.url()
        self._leader = f"{Queue(server).base}:leader"
        self._redis = server.client()
        self.killed: set[str] = set()
        for _ in range(WORKERS):
            self.add()

    def add(self) -> None:
        self._start("fastq-worker", "timekeeping:Timed", "--redis", self._url)

    def leader(self) -> str:
        return cast(bytes, self._redis.get(self._leader) or b"").decode()

    async def kill_leader(self, after_s: float) -> None:
        """Kills the leader when it has led for so long."""
        consumer = await eventually(lambda: self.leader() not in self.killed and self.leader())
        await asyncio.sleep(after_s)
        os.kill(int(str(consumer).split(":")[1]), signal.SIGKILL)
        self.killed.add(str(consumer))
        self.add()


def pending_of(queue: Queue) -> dict[str, str]:
    """Job id -> consumer, of what was read and not settled."""
    pending = queue.pending()
    entries = cast(list[Any], queue.redis.xrange(queue.stream))
    found = {fields.get(b"i", entry).decode(): entry.decode() for entry, fields in entries}
    return {job: pending[entry][0] for job, entry in found.items() if entry in pending}


def lateness(queue: Queue, tally: Tally) -> list[int]:
    """How many ms after its time each tick's entry was added."""
    ran = cast(dict[bytes, bytes], tally._client.hgetall("entries"))
    entries = cast(list[Any], queue.redis.xrange(queue.stream))
    waiting = {fields[b"i"]: entry for entry, fields in entries if b"i" in fields}
    places = {**waiting, **ran}
    return [
        int(entry.split(b"-")[0]) - int(job.rsplit(b":", 1)[1])
        for job, entry in places.items()
        if job.startswith(b"cron:tick:")
    ]


@pytest.mark.faults
async def test_a_killed_leader_loses_doubles_and_delays_nothing(
    valkey: Server, tally: Tally, tmp_path: Path
) -> None:
    queue, dice = Queue(valkey), random.Random(1)
    seconds = 4.5 * KILLS
    with commands(tmp_path) as start:
        fleet = Fleet(start, valkey)
        await eventually(fleet.leader, DEADLINE_S)
        async with Client(valkey.url()) as client:
            calls = (
                fastq.call(count).options(defer_by=1 + seconds * dice.random()) for _ in range(JOBS)
            )
            jobs = await client.enqueue_many(calls)
            for _ in range(KILLS):
                # One that is killed as soon as it leads would only make the gap twice as long.
                await fleet.kill_leader(0.2 + 2.5 * dice.random())
            await eventually(lambda: is_over(queue, fleet.killed), DEADLINE_S)
            places = [await job.status() for job in jobs]
        last_tick = int(cast(bytes, queue.redis.hget(f"{queue.base}:cron", "tick")))
        left = pending_of(queue)
        check_jobs([job.id for job in jobs], places, left, tally)
        check_ticks(last_tick, left, tally)
        late = lateness(queue, tally)
        print(
            f"{len(late)} ticks, the latest {max(late)} ms late; pending of the killed: {len(left)}"
        )
        assert min(late) >= 0
        assert max(late) <= MAY_BE_LATE_MS


def is_over(queue: Queue, killed: set[str]) -> bool:
    """Nothing is left but what the killed had read (and a tick that has just come)."""
    if queue.redis.zcard(f"{queue.base}:deferred"):
        return False
    waiting = queue.length() - len(queue.pending())
    return not waiting and all(who in killed for who, _ in queue.pending().values())


def check_jobs(ids: list[str], places: list[str], left: dict[str, str], tally: Tally) -> None:
    runs = tally.runs()
    for job_id, place in zip(ids, places, strict=True):
        if job_id in left:
            assert (place, runs.get(job_id, 0) <= 1) == ("running", True)
        else:
            assert (place, runs.get(job_id)) == ("complete", 1)


def check_ticks(last_ms: int, left: dict[str, str], tally: Tally) -> None:
    runs = {job: times for job, times in tally.runs().items() if job.startswith("cron:tick:")}
    known = {int(job.rsplit(":", 1)[1]) for job in {*runs, *left} if job.startswith("cron:tick:")}
    known = {tick for tick in known if tick <= last_ms}
    assert known == set(range(min(known), last_ms + 1, 1000))
    assert set(runs.values()) == {1}
