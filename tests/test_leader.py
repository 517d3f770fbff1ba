"""One worker of a queue leads; when it cannot, another does; and what happens if two do."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, cast

import pytest

import fastq
from counted import Tally, count, counting, kill_named
from fastq import cron
from fastq._core import ConnectionLost, ReplyError
from fastq.beats import BEAT_S, LEAD_S, Beat
from fastq.connection import Connection, connect
from fastq.keys import QueueKeys
from fastq.leader import Leader
from fastq.worker import Worker
from proxy import Proxy
from restrained import full, permissions
from servers import Server
from ticking import EVERY_SECOND, LEAD_DEADLINE_S, Elsewhere, asked, fleet
from waiting import eventually
from workers import DEADLINE_S, Queue, settings_of, still_works

pytestmark = pytest.mark.faults

A_DAY_S = 86_400
NEVER = "0 0 29 2 *"


async def add(x: int, y: int) -> int:
    return x + y


# Who leads


async def test_one_of_several_workers_leads(valkey: Server) -> None:
    async with fleet(valkey, 4, add) as fl:
        leader = await fl.leader()
        since = beats(fl.queue)
        # All have stood for election again, and the server has told them who it is.
        await eventually(lambda: all(ms > since[w] + 900 for w, ms in beats(fl.queue).items()))
        assert await fl.leader() in (leader, *fl.workers)
        assert sorted(beats(fl.queue)) == sorted(worker.consumer for worker in fl.workers)


def beats(queue: Queue) -> dict[str, float]:
    found = cast(
        list[tuple[bytes, float]], queue.redis.zrange(f"{queue.base}:beats", 0, -1, withscores=True)
    )
    return {name.decode(): score for name, score in found}


async def test_a_leader_that_stops_leaves_the_lead_vacant_for_another(valkey: Server) -> None:
    async with fleet(valkey, 3, add) as fl:
        for _ in range(2):
            leader = await fl.leader()
            await leader.stop()
            # Not after the time of its lead, but at once.
            assert (leader._leader.leads, fl.elected() == leader.consumer) == (False, False)
            await fl.leader(other_than=leader)
        assert len(beats(fl.queue)) == 1


async def test_a_leader_whose_loop_hangs_is_replaced(valkey: Server, tally: Tally) -> None:
    settings = settings_of(valkey, count, lifespan=counting)
    elsewhere = Elsewhere(settings)
    try:
        await eventually(lambda: elsewhere.leads, LEAD_DEADLINE_S)
        async with fleet(valkey, 1, count, lifespan=counting) as fl:
            job = await fl.client.options(defer_by=1).enqueue(count)
            elsewhere.hang()
            assert await fl.leader() is fl.workers[0]
            await eventually(lambda: not fl.queue.redis.zcard(f"{fl.queue.base}:deferred"))
            elsewhere.go_on()
            await eventually(lambda: not elsewhere.leads, LEAD_DEADLINE_S)
            await tally.all_once([job])
            assert await fl.leader() is fl.workers[0]
    finally:
        await elsewhere.close()


async def test_a_leader_that_is_cut_off_is_replaced(valkey: Server, tally: Tally) -> None:
    async with Proxy(valkey.port) as proxy:
        counted: dict[str, Any] = {"lifespan": counting}
        async with fleet(valkey, 1, count, redis=proxy.url(), **counted) as behind:
            cut_off = await behind.leader()
            async with fleet(valkey, 1, count, **counted) as fl:
                job = await fl.client.options(defer_by=0.5).enqueue(count)
                proxy.refusing = True
                proxy.cut()
                await eventually(lambda: not cut_off._leader.leads)
                leader = await fl.leader()
                await tally.all_once([job])
                proxy.refusing = False
                await eventually(lambda: cut_off._fetcher.reading, DEADLINE_S)
                await tally.all_once([await fl.client.options(defer_by=0.5).enqueue(count)])
                assert (cut_off._leader.leads, await fl.leader()) == (False, leader)


async def test_a_leader_whose_connection_breaks_goes_on_with_the_next(
    valkey: Server, tally: Tally
) -> None:
    async with fleet(valkey, 1, count, lifespan=counting) as fl:
        leader = await fl.leader()
        for _ in range(3):
            job = await fl.client.options(defer_by=0.3).enqueue(count)
            assert await eventually(lambda: kill_named(valkey, f"{leader.consumer}:writer"))
            await tally.all_once([job])
        assert await fl.leader() is leader


# Two at once


async def test_leaders_at_the_same_time_do_no_harm(
    valkey: Server, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, dice = Worker._told, random.Random(1)
    monkeypatch.setattr(Worker, "_told", lambda self, beat: told(self, beat._replace(leads=True)))
    entry = cron(EVERY_SECOND, count, name="tick", unique=False)
    async with fleet(valkey, 3, count, lifespan=counting, cron_jobs=[entry]) as fl:
        await eventually(lambda: len(fl.leaders()) == 3)
        calls = [fastq.call(count).options(defer_by=2 * dice.random()) for _ in range(300)]
        await tally.all_once(await fl.client.enqueue_many(calls))
        await eventually(lambda: len(ticks(tally)) >= 2)
        assert len(fl.leaders()) == 3
    assert tally.doubled() == 0
    found = ticks(tally)
    assert found == list(range(found[0], found[-1] + 1, 1000))


def ticks(tally: Tally) -> list[int]:
    return sorted(int(name.rsplit(":", 1)[1]) for name in tally.runs() if name.startswith("cron:"))


# Its duties


class Chore:
    """A duty that ends so, one time after the other, and then well."""

    name = "chore"

    def __init__(self, *ends: float | Exception, hurries: bool = False) -> None:
        self.hurries = hurries
        self.runs = 0
        self._ends = list(ends)

    async def run(self, connection: Connection) -> float:
        self.runs += 1
        await connection.call("PING")
        end = self._ends.pop(0) if self._ends else 0.01
        if isinstance(end, Exception):
            raise end
        return end


class Led:
    """A leader of these duties, on a connection of its own."""

    def __init__(self, server: Server, *duties: Chore) -> None:
        self._settings = settings_of(server, add).redis
        self.channel = QueueKeys("default").control(0)
        self.leader = Leader(duties, self._settings, self.channel)

    async def __aenter__(self) -> "Led":
        self._connection = await connect(self._settings)
        self.leader.lead(self._connection)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leader.step_down()
        self._connection.close()
        await asyncio.sleep(0)


async def test_a_duty_that_fails_is_called_again_and_the_others_go_on(
    valkey: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fastq.leader._AFTER_A_BUG_S", 0.05)
    broken = Chore(ValueError("a bug"), TimeoutError("another"), hurries=True)
    refused = Chore(*[ReplyError("ERR no")] * 3, 0.01, ReplyError("ERR no"), ReplyError("ERR oh"))
    well = Chore()
    async with Led(valkey, broken, refused, well):
        await eventually(lambda: well.runs >= 3)
        await eventually(lambda: broken.runs >= 4 and refused.runs >= 8)
    said = [record.getMessage() for record in caplog.records if record.levelname != "INFO"]
    assert said.count("The chore failed; it is called again") == 2
    # Once for a cause, and again when all had been well meanwhile.
    assert said.count("The chore was refused, trying again: ERR no") == 2
    assert said.count("The chore was refused, trying again: ERR oh") == 1
    assert len(said) == 5


async def test_a_duty_is_called_no_more_on_a_lost_connection_or_after_stepping_down(
    valkey: Server,
) -> None:
    lost, well = Chore(ConnectionLost("gone")), Chore()
    async with Led(valkey, lost, well) as led:
        await eventually(lambda: well.runs >= 3)
        assert lost.runs == 1
        led.leader.step_down()
        runs = well.runs
        await asyncio.sleep(0.1)  # ten times the pause that it asks for
        assert (well.runs, led.leader.leads) == (runs, False)


async def test_duties_that_hurry_are_called_when_the_server_says_so(valkey: Server) -> None:
    hurries, waits, redis = Chore(*[60.0] * 9, hurries=True), Chore(*[60.0] * 9), valkey.client()
    async with Led(valkey, hurries, waits) as led:
        for _ in range(3):
            # Also on the next connection, and after what was missed meanwhile.
            await eventually(lambda: is_heard(valkey, led.channel))
            await calls(hurries, lambda: redis.publish(led.channel, "wake"))
            await calls(hurries, lambda: kill_named(valkey, "fastq:leader"))
        assert waits.runs == 1


async def calls(chore: Chore, what: Callable[[], Any]) -> None:
    before = chore.runs
    assert what()
    await eventually(lambda: chore.runs > before)


def is_heard(server: Server, channel: bytes) -> bool:
    found = cast(list[tuple[bytes, int]], server.client().pubsub_numsub(channel.decode()))
    return found[0][1] > 0


# What the server refuses


REFUSED = {
    "subscribe": "-subscribe",
    "channel": "resetchannels",
    "publish": "-publish",
}


@pytest.mark.parametrize("what", REFUSED)
async def test_wakes_are_only_hints(
    valkey: Server, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    await check_late_but_run(valkey, REFUSED[what])
    told = [record for record in caplog.records if "may be 1 s late" in record.getMessage()]
    assert len(told) == (what != "publish")
    assert all("permission" in record.getMessage() for record in told)


@pytest.mark.servers
async def test_jobs_run_where_all_of_pub_sub_is_refused(server: Server) -> None:
    await check_late_but_run(server, "-@pubsub")


async def check_late_but_run(server: Server, take: str) -> None:
    with permissions(server) as user:
        user.set(take)
        async with fleet(server, 1, add, redis=user.url) as fl:
            await fl.leader()
            job = await fl.client.options(defer_by=0.05).enqueue(add, 1, 1)
            assert await job.result(DEADLINE_S) == 2


async def test_a_leader_key_of_another_type_is_named_and_the_worker_lives(
    valkey: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with fleet(valkey, 1, add) as fl:
        leader, key = await fl.leader(), f"{fl.queue.base}:leader"
        fl.queue.redis.delete(key)
        fl.queue.redis.lpush(key, "something else")
        await eventually(lambda: key in caplog.text)
        assert await still_works(fl.client)
        # One that starts now has to wait, but not longer.
        late = asyncio.ensure_future(fl.add())
        job = await fl.client.options(defer_by=0.1).enqueue(add, 1, 1)
        assert await job.result(DEADLINE_S) == 2
        fl.queue.redis.delete(key)
        await late
        assert await fl.leader() in (leader, late.result())
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert 1 <= len(warned) <= 3, caplog.text


@pytest.mark.servers
async def test_a_full_server_elects_a_leader(server: Server) -> None:
    async with fleet(server, 1, add) as fl:
        first = await fl.leader()
        with full(server):
            second = await fl.add()
            await first.stop()
            assert await fl.leader(other_than=first) is second


# How often it is asked

PAUSES: dict[str, tuple[Beat, float, float]] = {
    "the leader": (Beat(True, 3000, 40), LEAD_S / 3, LEAD_S / 3),
    "one of two": (Beat(False, 3000, 2), 1, 1),
    "one of twelve": (Beat(False, 3000, 12), 3, 3),
    "one of forty": (Beat(False, 2999, 40), 3.004, 3.049),
    "one of many": (Beat(False, 3900, 1000), BEAT_S, BEAT_S),
    "nobody leads": (Beat(False, 0, 1), 1, 1),
    "the lead falls vacant soon": (Beat(False, 300, 1), 0.305, 0.35),
    "it falls vacant at the next beat": (Beat(False, 1000, 3), 1, 1),
}


@pytest.mark.parametrize("case", PAUSES)
def test_the_pause_between_beats(case: str) -> None:
    beat, least_s, most_s = PAUSES[case]
    for _ in range(20):
        assert least_s <= round(beat.pause_s(), 6) <= most_s


async def test_idle_workers_are_quiet(valkey: Server, capsys: pytest.CaptureFixture[str]) -> None:
    """One command a second each, at most; fewer of many. What scripts call is not counted."""
    seconds, size = 6.0, 12
    async with fleet(valkey, size, add, cron_jobs=[cron(NEVER, add_nothing)]) as fl:
        calls = (fastq.call(add, n, n).options(defer_by=A_DAY_S + n) for n in range(20))
        await fl.client.enqueue_many(calls)
        await fl.leader()
        await eventually(lambda: len(beats(fl.queue)) == size)
        by_clients, by_scripts = await asked(valkey, seconds)
    with capsys.disabled():
        print(f"\n{size} workers: {count_of(by_clients, seconds)}; {count_of(by_scripts, seconds)}")
    assert {"evalsha", "xreadgroup"} <= set(by_clients)
    assert len(by_clients) <= size * seconds


def count_of(commands: list[str], seconds: float) -> str:
    names = {name: commands.count(name) for name in sorted(set(commands))}
    return f"{len(commands) / seconds:.1f}/s {names}"


async def add_nothing() -> None: ...
