"""Jobs and entries that misbehave: each ends in a way that is told, and the worker lives."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

import fastq
from fastq import Client
from fastq.worker import Worker
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, Queue, ended, failure, settings_of, start, still_works, working

DEAD_FIELDS = {"f", "d", "e", "id", "reason", "error", "tries"}


async def add(x: int, y: int) -> int:
    return x + y


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
