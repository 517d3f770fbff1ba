"""The crontab as each leader has it: which ticks fire, by what is kept of them on the server.

Here it runs when the test says so; on workers, and with clocks astray, see test_cron_jobs.py.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

import fastq
from fastq import Context, cron
from fastq.clock import RedisClock
from fastq.connection import Connection, connect
from fastq.crontab import Crontab
from fastq.keys import QueueKeys
from fastq.redis_settings import RedisSettings
from restrained import Permissions, full, permissions
from retrying import Sight
from servers import Server
from ticking import EVERY_SECOND
from waiting import eventually
from workers import DEADLINE_S, ended, settings_of, working

pytestmark = pytest.mark.faults

NAME = "tick"
SECOND_MS = 1_000
SELDOM = "0 0 29 2 *"


async def tick(ctx: Context, *notes: Any) -> str:
    return ctx.job_id


class Leaders:
    """Crontabs of one queue, each with a connection and a clock of its own."""

    def __init__(self, server: Server, connections: list[Connection], *cron_jobs: Any) -> None:
        settings = settings_of(server, tick, cron_jobs=cron_jobs)
        self.queue = Sight(server)
        self.key = f"{self.queue.base}:cron"
        self.entries = settings.cron
        self.clocks = [RedisClock() for _ in connections]
        self._connections = connections
        keys = QueueKeys(settings.queue)
        self._crontabs = [Crontab(keys, settings.cron, clock, db=0) for clock in self.clocks]

    async def run(self, number: int = 0) -> float:
        """One looks what is to be done; in how many seconds it wants to look again."""
        self.clocks[number].told(self.queue.now_ms())
        return await self._crontabs[number].run(self._connections[number])

    async def run_as_it_is(self) -> float:
        """Without being told the time before."""
        return await self._crontabs[0].run(self._connections[0])

    async def run_all(self) -> None:
        await asyncio.gather(*(self.run(n) for n in range(len(self._crontabs))))

    def last(self, name: str = NAME) -> int:
        found = cast("bytes | None", self.queue.redis.hget(self.key, name))
        return int(found or 0)

    def missed_since(self, seconds: float, name: str = NAME) -> int:
        """As if nobody had looked for so long; when that began."""
        since = self.queue.now_ms() - int(seconds * 1_000)
        self.queue.redis.hset(self.key, name, str(since))
        return since

    def fired(self) -> list[str]:
        return [entry["i"].decode() for entry in self.queue.entries()]

    def ticks(self) -> list[int]:
        """Where no entry is unique."""
        return [int(job_id.rsplit(":", 1)[1]) for job_id in self.fired()]


@contextlib.asynccontextmanager
async def leaders(
    server: Server, *cron_jobs: Any, number: int = 1, url: str = ""
) -> AsyncIterator[Leaders]:
    settings = RedisSettings.from_url(url or server.url())
    connections = [await connect(settings) for _ in range(number)]
    try:
        yield Leaders(server, connections, *cron_jobs)
    finally:
        for connection in connections:
            connection.close()


def each_second(**options: Any) -> Any:
    return cron(EVERY_SECOND, tick, **{"name": NAME, "unique": False, **options})


def seconds_of(since_ms: int, until_ms: int) -> list[int]:
    """The whole seconds after one time, up to another."""
    return list(range((since_ms // SECOND_MS + 1) * SECOND_MS, until_ms + 1, SECOND_MS))


# Once each


@pytest.mark.servers
async def test_each_tick_that_has_come_fires_once_for_three_leaders_at_once(server: Server) -> None:
    async with leaders(server, each_second(), number=3) as led:
        since = led.missed_since(20)
        await led.run_all()
        until = led.queue.now_ms()
        ticks = led.ticks()
        assert ticks == seconds_of(since, ticks[-1])
        assert 20 <= len(ticks) <= len(seconds_of(since, until))
        assert led.last() == ticks[-1] <= until
        await led.run_all()
        assert led.ticks()[: len(ticks)] == ticks == sorted(set(led.ticks()))[: len(ticks)]


@pytest.mark.servers
async def test_a_leader_whose_clock_is_ahead_fires_nothing_early(server: Server) -> None:
    async with leaders(server, each_second()) as led:
        led.missed_since(0)
        led.clocks[0].told(led.queue.now_ms() + 5_000)
        pause_s = await led.run_as_it_is()
        now_ms = led.queue.now_ms()
        assert all(tick_ms <= now_ms for tick_ms in led.ticks())
        # It has been told, and asks again for that tick.
        assert abs(led.clocks[0].now_ms() - now_ms) < 4_000
        assert pause_s <= 1


@pytest.mark.servers
async def test_a_server_that_has_lost_the_script_fires_all_the_same(server: Server) -> None:
    async with leaders(server, each_second()) as led:
        for _ in range(2):
            led.queue.redis.script_flush()
            before = len(led.fired())
            led.missed_since(3)
            await led.run()
            assert len(led.fired()) >= before + 3


async def test_it_sleeps_until_the_next_tick_but_a_minute_at_most(valkey: Server) -> None:
    async with leaders(valkey, each_second()) as led:
        for _ in range(3):
            assert 0 <= await led.run() <= 1
    async with leaders(valkey, cron(SELDOM, tick)) as led:
        assert await led.run() == 60
    async with leaders(valkey) as led:
        assert await led.run() == 60


# Missed ones


@pytest.mark.servers
async def test_ticks_that_are_more_than_a_minute_late_are_skipped(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    entry = cron("*/10 * * * * *", tick, name=NAME, unique=False)
    async with leaders(server, entry) as led:
        led.missed_since(300)
        before = led.queue.now_ms()
        await led.run()
        after = led.queue.now_ms()
        ticks = led.ticks()
        assert 6 <= len(ticks) <= 7
        assert before - 60_000 <= ticks[0] < after - 60_000 + 10_000
        assert ticks == list(range(ticks[0], ticks[-1] + 1, 10_000))
        await led.run()
        assert led.ticks()[: len(ticks)] == ticks
    warned = [r.getMessage() for r in caplog.records if "were missed" in r.getMessage()]
    assert len(warned) == 1
    assert NAME in warned[0]


@pytest.mark.servers
async def test_entries_that_catch_up_fire_all_that_were_missed(server: Server) -> None:
    entry = cron("*/10 * * * * *", tick, name=NAME, unique=False, catch_up=True)
    async with leaders(server, entry) as led:
        since = led.missed_since(300)
        await led.run()
        ticks = led.ticks()
        assert ticks[0] == (since // 10_000 + 1) * 10_000
        assert ticks == list(range(ticks[0], ticks[-1] + 1, 10_000))
        assert 30 <= len(ticks) <= 31


async def test_of_too_many_missed_ticks_the_latest_thousand_fire(valkey: Server) -> None:
    async with leaders(valkey, each_second(catch_up=True)) as led:
        led.missed_since(3_000)
        before = led.queue.now_ms()
        await led.run()
        ticks = led.ticks()
        assert len(ticks) == 1_000
        assert ticks == seconds_of(ticks[0] - 1, ticks[-1])
        assert ticks[-1] >= before - SECOND_MS


@pytest.mark.servers
async def test_an_entry_that_is_new_has_missed_nothing_and_misses_nothing(server: Server) -> None:
    async with leaders(server, each_second(catch_up=True), number=2) as led:
        before = led.queue.now_ms()
        await led.run_all()
        first = led.last()
        assert before <= first <= led.queue.now_ms()
        assert (led.fired(), led.queue.redis.hlen(led.key)) == ([], 1)
        # What has come since, whoever looks.
        since = led.missed_since(3)
        await led.run(1)
        assert led.ticks() == seconds_of(since, led.ticks()[-1])


async def test_an_entry_that_came_back_goes_by_its_last_tick(valkey: Server) -> None:
    """And while it is not among the settings, it does not fire."""
    async with leaders(valkey, each_second(name="other")) as led:
        since = led.missed_since(5, NAME)
        led.missed_since(2, "other")
        await led.run()
        assert {job_id.split(":")[1] for job_id in led.fired()} == {"other"}
        assert led.last(NAME) == since
    async with leaders(valkey, each_second(), each_second(name="other")) as led:
        await led.run()
        back = [job_id for job_id in led.fired() if job_id.startswith("cron:tick:")]
        assert len(back) >= 5


# The last run


@pytest.mark.servers
async def test_a_tick_of_a_unique_entry_is_skipped_while_its_last_run_is_there(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "fastq.crontab")
    async with leaders(server, each_second(unique=True), number=2) as led:
        led.missed_since(5)
        before = led.queue.now_ms()
        await led.run_all()
        assert led.fired() == ["cron:tick"]
        # They are over all the same.
        assert led.last() > before - SECOND_MS
        assert caplog.text.count("was skipped, its last run is there") >= 4
        # When it has ended, the next one fires.
        async with working(server, tick) as (client, _):
            assert await ended(client.job("cron:tick")) == "complete"
            await eventually(lambda: led.queue.length() == 0)
        led.missed_since(1)
        await led.run()
        assert led.fired() == ["cron:tick"]


async def test_it_goes_by_the_clock_and_not_by_when_the_last_run_ended(valkey: Server) -> None:
    entry = cron("*/2 * * * * *", tick, name=NAME)
    async with leaders(valkey, entry) as led:
        led.missed_since(2)
        await led.run()
        assert led.fired() == ["cron:tick"]
        last = led.last()
        async with working(valkey, tick) as (client, _):
            assert await ended(client.job("cron:tick")) == "complete"
            await eventually(lambda: led.queue.length() == 0)
        pause_s = await led.run()
        # Nothing new, unless a tick came meanwhile; and the next is at an even second.
        assert led.last() % 2_000 == 0
        assert led.fired() == ([] if led.last() == last else ["cron:tick"])
        next_ms = led.queue.now_ms() + 1_000 * pause_s
        assert min(next_ms % 2_000, 2_000 - next_ms % 2_000) < 500 or pause_s == 0


@pytest.mark.servers
async def test_all_that_its_call_says_is_in_the_entry(server: Server) -> None:
    call = fastq.call(tick, "daily", {"n": 1}).options(timeout=7, max_tries=2, keep_result=9)
    unique = cron(EVERY_SECOND, call, name="one")
    async with leaders(server, unique, cron(EVERY_SECOND, call, name="each", unique=False)) as led:
        led.missed_since(1, "one")
        led.missed_since(1, "each")
        await led.run()
        for entry in led.queue.entries():
            assert (entry["f"], entry["d"]) == (b"tick", b'["daily",{"n":1}]')
            assert (entry["k"], entry["o"]) == (b"9000", b'{"timeout":7.0,"max_tries":2}')
        one, each, *_ = led.fired()
        assert one == "cron:one"
        assert re.fullmatch(r"cron:each:\d+000", each)
        async with working(server, tick) as (client, _):
            job = client.job("cron:one")
            assert await job.result(DEADLINE_S) == "cron:one"
            assert 0 < led.queue.result_ttl_ms("cron:one") <= 9_000


# What is refused or broken


@contextlib.contextmanager
def taken(user: Permissions, what: str) -> Iterator[None]:
    user.set(what)
    try:
        yield
    finally:
        user.set("allkeys +@all")


REFUSED = {
    "hset": "-hset",
    "hmget": "-hmget",
    "xadd": "-xadd",
    "set": "-set",
    "the hash": "resetkeys ~fastq:* ~{fastq:default}:[!c]*",
    "the stream": "resetkeys ~fastq:* ~{fastq:default}:[!s]*",
}


@pytest.mark.servers
@pytest.mark.parametrize("unique", [False, True])
async def test_a_tick_that_is_refused_half_way_fires_once_when_mended(
    server: Server, unique: bool
) -> None:
    """It is not added again and again meanwhile."""
    with permissions(server) as user:
        async with leaders(server, each_second(unique=unique), url=user.url) as led:
            for what in REFUSED.values():
                led.queue.redis.delete(led.queue.stream)
                led.missed_since(3)
                last = led.last()
                with taken(user, what):
                    for _ in range(3):
                        with pytest.raises(Exception, match="permission|can't run this command"):
                            await led.run()
                assert (led.fired(), led.last()) == ([], last)
                await led.run()
                assert led.fired() == (["cron:tick"] if unique else fired_since(led, last))


def fired_since(led: Leaders, last_ms: int) -> list[str]:
    return [f"cron:tick:{tick_ms}" for tick_ms in seconds_of(last_ms, led.last())]


@pytest.mark.servers
async def test_on_a_full_server_a_tick_waits_for_room(server: Server) -> None:
    async with leaders(server, each_second(), each_second(name="new")) as led:
        led.missed_since(3)
        last = led.last()
        with full(server):
            with pytest.raises(Exception, match="OOM"):
                await led.run()
            assert (led.fired(), led.last()) == ([], last)
        await led.run()
        assert led.fired() == fired_since(led, last)


@pytest.mark.servers
async def test_a_hash_that_is_something_else_is_named_and_when_mended_no_tick_is_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with working(server, tick, cron_jobs=[each_second()]) as (client, _):
        queue, key = Sight(server), "{fastq:default}:cron"
        await eventually(lambda: queue.redis.hget(key, NAME))
        last = int(cast(bytes, queue.redis.hget(key, NAME)))
        queue.redis.rename(key, f"{key}:aside")
        queue.redis.lpush(key, "something else")
        await eventually(lambda: "crontab was refused" in caplog.text)
        job = await client.options(defer_by=0.01).enqueue(tick)
        assert await job.result(DEADLINE_S) == job.id
        queue.redis.rename(f"{key}:aside", key)
        await eventually(lambda: int(cast(bytes, queue.redis.hget(key, NAME))) > last + 2_000)
        for tick_ms in seconds_of(last, last + 2_000):
            found = client.job(f"cron:tick:{tick_ms}")
            assert await found.result(DEADLINE_S) == found.id
    warned = [r.getMessage() for r in caplog.records if "crontab was refused" in r.getMessage()]
    # The script may be the first to meet it, or the look before it.
    assert 1 <= len(warned) <= 2
    assert any(key in line for line in warned)


NO_TICKS = ["", "soon", "-1", "12.5", "9" * 16, "9" * 40, "\u00b2"]


@pytest.mark.servers
@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside another"])
async def test_a_tick_that_is_none_holds_up_no_entry(server: Server, other: bool) -> None:
    """Of hands that were in the hash: it is as if the entry were new."""
    entries = [each_second(), each_second(name="well")][: 1 + other]
    async with leaders(server, *entries) as led:
        for value in NO_TICKS:
            led.queue.redis.delete(led.queue.stream)
            led.queue.redis.hset(led.key, NAME, value)
            led.missed_since(2, "well")
            await led.run()
            assert len(led.fired()) >= 2 * other, value
