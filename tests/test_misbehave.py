"""Jobs and entries that misbehave: each ends in a way that is told, and the worker lives."""

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import fastq
from fastq import Client, Context, JobFailed, JobTimeout
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, Queue, ended, settings_of, start, working

DEAD_FIELDS = {"f", "d", "id", "reason", "error", "tries"}


async def add(x: int, y: int) -> int:
    return x + y


async def failure(job: fastq.Job[Any]) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        await job.result(DEADLINE_S)
    return caught.value


async def still_works(client: Client) -> bool:
    return await (await client.enqueue("add", 1, 2)).result(DEADLINE_S) == 3


# Failures

broken = True


async def mend(x: int, note: str = "") -> int:
    if broken:
        raise ValueError(f"broken {note}")
    return x


@pytest.mark.servers
async def test_a_failed_job_can_be_run_again_from_dead(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(server)
    async with working(server, mend) as (client, _):
        job = await client.options(timeout=9, keep_result=90).enqueue(mend, 7, note="é")
        error = await failure(job)
        assert (error.reason, error.type, error.message) == ("failed", "ValueError", "broken é")
        assert 'raise ValueError(f"broken {note}")' in error.traceback
        [entry] = queue.dead()
        assert entry.keys() == DEAD_FIELDS | {"o", "k"}
        assert (entry["id"].decode(), entry["reason"], entry["tries"]) == (job.id, b"failed", b"1")
        assert msgspec.json.decode(entry["error"])["message"] == "broken é"
        assert (queue.length(), queue.pending()) == (0, {})
        monkeypatch.setattr(sys.modules[__name__], "broken", False)
        again = queue.add(**{name: entry[name] for name in ("f", "d", "o", "k")})
        assert await client.job(again).result(DEADLINE_S) == 7
    assert 80_000 < queue.result_ttl_ms(again) <= 90_000


class Strange(BaseException):
    """No Exception: code that expects failures does not catch it."""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class MuteForGood(Exception):
    def __str__(self) -> str:
        raise Strange

    __repr__ = __str__


class Surrogate(Exception):
    def __str__(self) -> str:
        return "\udc80"


Odd: Any = type("Odd", (Exception,), {"__module__": None})

ERRORS: dict[str, tuple[Callable[[], BaseException], str]] = {
    "SystemExit": (lambda: SystemExit(3), "3"),
    "KeyError": (lambda: KeyError("k"), "'k'"),
    "CancelledError": (lambda: asyncio.CancelledError("own"), "own"),
    "Strange": (lambda: Strange("odd"), "odd"),
    "TimeoutError": (lambda: TimeoutError("mine"), "mine"),
    "Group": (lambda: ExceptionGroup("all", [ValueError("one")]), "all (1 sub-exception)"),
    "Mute": (Mute, "(its __str__ raised RuntimeError)"),
    "MuteForGood": (MuteForGood, "(its __str__ raised Strange)"),
    "Surrogate": (Surrogate, "\\udc80"),
    "Odd": (lambda: Odd("odd"), "odd"),
    "Long": (lambda: ValueError("x" * 1_000_000), "x"),
}


async def throw(name: str, pause: bool) -> None:
    if pause:
        await asyncio.sleep(0)
    raise ERRORS[name][0]()


def throw_sync(name: str, pause: bool) -> None:
    raise ERRORS[name][0]()


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("name", ERRORS)
async def test_whatever_a_job_raises_is_its_failure(server: Server, name: str) -> None:
    async with working(server, throw, throw_sync, add) as (client, worker):
        calls = [(throw, False), (throw, True), (throw_sync, False)]
        for function, pause in calls:
            error = await failure(await client.enqueue(function, name, pause))
            assert error.reason == "failed"
            assert error.message.startswith(ERRORS[name][1])
            assert len(error.message) < 20_000
        assert await still_works(client)
    assert worker.failed == len(calls) == len(Queue(server).dead())


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit])
async def test_errors_that_steer_python_itself_are_failures(server: Server, kind: Any) -> None:
    async def control() -> None:
        raise kind("x")

    def control_sync() -> None:
        raise kind("x")

    async with working(server, control, control_sync, add) as (client, _):
        # A coroutine cannot let StopIteration out: Python makes a RuntimeError of it.
        assert (await failure(await client.enqueue(control))).reason == "failed"
        error = await failure(await client.enqueue(control_sync))
        assert (error.type, error.message) == (kind.__name__, "x")
        assert await still_works(client)


async def test_a_keyboard_interrupt_in_a_thread_is_the_job_s_own(server: Server) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    async with working(server, interrupt, add) as (client, _):
        assert (await failure(await client.enqueue(interrupt))).type == "KeyboardInterrupt"
        assert await still_works(client)


async def test_a_job_that_cancels_itself_has_failed(server: Server) -> None:
    async def give_up() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel("enough")
        await asyncio.sleep(DEADLINE_S)

    async with working(server, give_up, add) as (client, _):
        error = await failure(await client.enqueue(give_up))
        assert (error.reason, error.type) == ("failed", "asyncio.exceptions.CancelledError")
        assert await still_works(client)


async def test_a_traceback_of_any_size_is_cut(server: Server) -> None:
    def there(n: int) -> int:
        return back(n + 1)

    def back(n: int) -> int:
        return there(n + 1)

    async def recurse() -> int:
        return there(0)

    async with working(server, recurse, there, add) as (client, _):
        for function in ("recurse", "there"):
            error = await failure(await client.enqueue(function, *[0] * (function == "there")))
            assert error.type == "RecursionError"
            assert "\n[...]\n" in error.traceback
            assert len(error.traceback) < 20_000
        assert await still_works(client)


def lambdas() -> Any:
    return lambda: None


async def lambdas_async() -> Any:
    return lambda: None


@pytest.mark.servers
@pytest.mark.parametrize("serializer", ["json", "pickle"])
async def test_a_result_that_cannot_be_carried_fails_the_job(
    server: Server, serializer: str
) -> None:
    functions = (lambdas, lambdas_async, add)
    async with working(server, *functions, serializer=serializer) as (client, _):
        for function in functions[:2]:
            error = await failure(await client.enqueue(function))
            assert error.type == "fastq.errors.SerializationError"
            assert "the result of type function cannot be carried" in error.message
        assert await still_works(client)


# Entries

RAW: dict[str, tuple[dict[str, str | bytes], str]] = {
    "garbage": ({"f": "add", "d": b"\xff\x00\x01"}, "undecodable"),
    "half JSON": ({"f": "add", "d": "[1,"}, "undecodable"),
    "no call": ({"f": "add", "d": "7"}, "undecodable"),
    "no payload": ({"f": "add"}, "undecodable"),
    "no function": ({"d": "[1,2]"}, "unknown_function"),
    "neither": ({"foo": "bar"}, "unknown_function"),
    "unknown": ({"f": "nobody", "d": "[1,2]"}, "unknown_function"),
    "no text": ({"f": b"\xff\xfe", "d": "[1,2]"}, "unknown_function"),
    "too few": ({"f": "add", "d": "[1]"}, "arguments"),
    "too many": ({"f": "add", "d": "[1,2,3]"}, "arguments"),
    "other types": ({"f": "add", "d": '["a",2]'}, "arguments"),
    "other names": ({"f": "add", "d": '{"a":[1],"k":{"z":1}}'}, "arguments"),
    "options": ({"f": "add", "d": "[1,2]", "o": "{timeout}"}, "undecodable"),
    "options' types": ({"f": "add", "d": "[1,2]", "o": '{"timeout":"x"}'}, "undecodable"),
    "keep": ({"f": "add", "d": "[1,2]", "k": "long"}, "undecodable"),
    "huge keep": ({"f": "add", "d": "[1,2]", "k": "9" * 30}, "undecodable"),
    "tries": ({"f": "add", "d": "[1,2]", "t": "many"}, "undecodable"),
    "huge tries": ({"f": "add", "d": "[1,2]", "t": "9" * 30}, "undecodable"),
    "nesting": ({"f": "add", "d": "[" * 100_000}, "undecodable"),
}


@pytest.mark.servers
async def test_entries_that_cannot_run_go_to_dead_with_all_they_hold(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add) as (client, worker):
        ids = {name: queue.add(**fields) for name, (fields, _) in RAW.items()}
        for name, job_id in ids.items():
            assert (await failure(client.job(job_id))).reason == RAW[name][1], name
        assert await still_works(client)
    assert worker.failed == len(RAW)
    dead = {entry["id"].decode(): entry for entry in queue.dead()}
    for name, job_id in ids.items():
        fields = {key: value.encode() if isinstance(value, str) else value
                  for key, value in RAW[name][0].items()}  # fmt: skip
        assert fields.items() - {("t", fields.get("t"))} <= dead[job_id].items()
    assert (queue.length(), queue.pending()) == (0, {})


async def test_messages_say_what_is_wrong_with_an_entry(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add) as (client, _):
        texts = {
            name: (await failure(client.job(queue.add(**RAW[name][0])))).message for name in RAW
        }
    assert texts["unknown"] == (
        "No function 'nobody' is registered in this worker. Add it to functions, or deploy the "
        "workers that know it."
    )
    assert texts["no function"] == "The entry names no function: its field f is missing."
    assert texts["no payload"] == "the entry has no payload: its field d is missing"
    assert texts["options"].startswith("the entry's options (field o): JSON is malformed")
    assert texts["huge keep"].endswith("the server cannot keep a result so long")
    assert texts["garbage"].startswith("add(): the payload is not the JSON of a call")
    assert "'y'" in texts["too few"]
    assert "'x'" in texts["other types"]


async def test_fields_of_a_newer_fastq_are_passed_over(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add) as (client, _):
        job_id = queue.add(f="add", d="[1,2]", zz="new", o='{"timeout":5,"colour":"red"}')
        assert await client.job(job_id).result(DEADLINE_S) == 3


async def test_a_payload_of_another_serializer_is_undecodable(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add, serializer="pickle") as (client, _):
        error = await failure(client.job(queue.add(f="add", d="[1,2]")))
        assert error.reason == "undecodable"
        assert "do both sides use the same serializer" in error.message
        assert await still_works(client)


# Time limits


async def test_a_job_over_its_limit_is_cancelled(server: Server) -> None:
    seen: list[str] = []

    @fastq.job(timeout=0.2)
    async def hang() -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async with working(server, hang, add, max_jobs=1) as (client, _):
        with pytest.raises(JobTimeout) as caught:
            await (await client.enqueue(hang)).result(DEADLINE_S)
        assert await still_works(client)
    assert caught.value.message == "ran longer than its time limit of 0.2 s"
    assert seen == ["cancelled"]
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"timeout"]


async def test_the_limit_may_come_from_anywhere(server: Server) -> None:
    async def hang(wait_s: float) -> str:
        await asyncio.sleep(wait_s)
        return "in time"

    short = fastq.job(hang, name="short", timeout=0.1)
    endless = fastq.job(hang, name="endless", timeout=None)
    async with working(server, hang, short, endless, job_timeout=0.2) as (client, _):
        plain = await client.enqueue(hang, DEADLINE_S)
        long = await client.options(timeout=DEADLINE_S).enqueue(short, 0.5)
        free = await client.options(timeout=None).enqueue(hang, 0.5)
        own = await client.options(timeout=0.1).enqueue(endless, DEADLINE_S)
        free_too = await client.enqueue(endless, 0.5)
        for job, limit in ((plain, "0.2 s"), (own, "0.1 s")):
            error = await failure(job)
            assert isinstance(error, JobTimeout)
            assert error.message.endswith(limit)
        assert [await job.result(DEADLINE_S) for job in (long, free, free_too)] == ["in time"] * 3


class Stubborn:
    """A job that does not end when it is cancelled, before it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.cancelled = 0

    async def run(self, ctx: Context) -> str:
        while not self.go.is_set():
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        return "late"


async def test_a_job_that_ignores_its_end_holds_its_slot(server: Server) -> None:
    job = Stubborn()
    run = fastq.job(job.run, name="run", timeout=0.1)
    async with working(server, run, add, max_jobs=1) as (client, worker):
        stuck = await client.enqueue("run")
        assert isinstance(await failure(stuck), JobTimeout)
        waiting = await client.enqueue(add, 1, 2)
        assert Queue(server).pending() == {}
        assert len(worker._executor.running) == 1
        assert await waiting.status() == "queued"
        job.go.set()
        assert await waiting.result(DEADLINE_S) == 3
        assert isinstance(await failure(stuck), JobTimeout)
        assert (worker._executor.late, job.cancelled) == (1, 1)
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"timeout"]


@pytest.mark.parametrize("end", ["return", "raise"])
async def test_what_a_job_does_after_its_limit_does_not_count(server: Server, end: str) -> None:
    async def swallow() -> str:
        try:
            await asyncio.sleep(DEADLINE_S)
        except asyncio.CancelledError:
            if end == "raise":
                raise ValueError("something else") from None
        return "late"

    async with working(server, fastq.job(swallow, timeout=0.1), add) as (client, _):
        error = await failure(await client.enqueue("swallow"))
        assert isinstance(error, JobTimeout)
        assert ("something else" in error.traceback) is (end == "raise")
        assert await still_works(client)
    assert [entry["reason"] for entry in Queue(server).dead()] == [b"timeout"]


async def test_a_sync_job_over_its_limit_holds_its_slot(server: Server) -> None:
    go = threading.Event()

    @fastq.job(timeout=0.2)
    def block() -> str:
        go.wait(DEADLINE_S)
        return "late"

    async with working(server, block, add, max_jobs=1) as (client, worker):
        began_s = time.monotonic()
        stuck = await client.enqueue(block)
        assert isinstance(await failure(stuck), JobTimeout)
        assert time.monotonic() - began_s < 5
        waiting = await client.enqueue(add, 1, 2)
        assert (len(worker._executor.running), Queue(server).pending()) == (1, {})
        assert await waiting.status() == "queued"
        go.set()
        assert await waiting.result(DEADLINE_S) == 3
        assert worker._executor.late == 1
        assert isinstance(await failure(stuck), JobTimeout)


async def test_a_job_that_blocks_the_loop_is_over_its_limit_all_the_same(server: Server) -> None:
    @fastq.job(timeout=0.1)
    async def block() -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - what it should not do
        await asyncio.sleep(DEADLINE_S)

    async with working(server, block, add) as (client, _):
        assert isinstance(await failure(await client.enqueue(block)), JobTimeout)
        assert await still_works(client)


async def test_a_job_cancelled_before_its_first_step_has_ended(server: Server) -> None:
    async def victim() -> None: ...

    async def kill() -> None:
        for task in asyncio.all_tasks():
            if task.get_name() == "victim":
                task.cancel()

    settings = settings_of(server, kill, victim, add)
    async with Client.from_settings(settings) as client:
        # Both are there before the worker, so they come in one reply: where tasks are not eager,
        # the second one has not begun when the first one runs.
        _, job = await client.enqueue_many([fastq.call(kill), fastq.call(victim)])
        worker = Worker(settings)
        run = await start(worker)
        assert await ended(job) == ("complete" if sys.version_info >= (3, 12) else "failed")
        assert worker._executor.running.free == worker.settings.max_jobs
        worker.ask_to_stop()
        await run


@pytest.fixture
async def one_slot(server: Server) -> AsyncIterator[tuple[Client, Worker]]:
    async with working(server, throw, add, max_jobs=1) as pair:
        yield pair


async def test_no_slot_is_lost_to_failures(one_slot: tuple[Client, Worker]) -> None:
    client, worker = one_slot
    jobs = [await client.enqueue(throw, name, pause=n % 2 == 0)
            for n in range(4) for name in ERRORS]  # fmt: skip
    jobs += [await client.enqueue("nobody", n) for n in range(20)]
    assert {await ended(job) for job in jobs} == {"failed"}
    await eventually(lambda: worker._executor.running.free == 1)
    assert await still_works(client)
