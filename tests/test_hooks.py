"""The hooks: when they run, what they are told, and what they cannot break."""

import asyncio
import threading
from typing import Any

import pytest

import fastq
from fastq import Context, JobFailed, JobTimeout, Outcome
from servers import Server
from waiting import eventually
from workers import DEADLINE_S, Queue, working


async def add(x: int, y: int) -> int:
    return x + y


def add_sync(x: int, y: int) -> int:
    return x + y


async def fail() -> None:
    raise ValueError("no")


class Hooks:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ended: list[tuple[str, Outcome]] = []

    async def on_job_start(self, ctx: Context) -> None:
        self.started.append(ctx.job_id)

    async def on_job_end(self, ctx: Context, outcome: Outcome) -> None:
        await asyncio.sleep(0)
        self.ended.append((ctx.job_id, outcome))

    def settings(self) -> dict[str, Any]:
        return {"on_job_start": self.on_job_start, "on_job_end": self.on_job_end}


@pytest.fixture
def hooks() -> Hooks:
    return Hooks()


# What hooks are told


@pytest.mark.parametrize("function", [add, add_sync])
async def test_hooks_see_each_job_start_and_end(
    server: Server, hooks: Hooks, function: Any
) -> None:
    async with working(server, function, fail, **hooks.settings()) as (client, worker):
        good = await client.enqueue(function, 1, 2)
        assert await good.result(DEADLINE_S) == 3
        bad = await client.enqueue(fail)
        with pytest.raises(JobFailed):
            await bad.result(DEADLINE_S)
        await client.enqueue("nobody")
        await eventually(lambda: worker._executor.endings.failed == 2)
    assert hooks.started == [good.id, bad.id]
    (first, complete), (second, failed) = hooks.ended
    assert (first, second) == (good.id, bad.id)
    assert complete == Outcome("complete", value=3)
    assert (failed.status, failed.reason, str(failed.error)) == ("failed", "failed", "no")
    assert isinstance(failed.error, ValueError)


async def test_hooks_share_the_job_s_context(server: Server) -> None:
    seen: list[Context] = []

    async def on_job_start(ctx: Context) -> None:
        seen.append(ctx)

    async def on_job_end(ctx: Context, outcome: Outcome) -> None:
        seen.append(ctx)

    async def job(ctx: Context) -> None:
        seen.append(ctx)

    hooks = {"on_job_start": on_job_start, "on_job_end": on_job_end}
    async with working(server, job, **hooks) as (client, _):
        handle = await client.enqueue(job)
        await handle.result(DEADLINE_S)
    assert [ctx.job_id for ctx in seen] == [handle.id] * 3
    assert repr(seen[0]) == f"<Context of job {handle.id} in queue 'default'>"


async def test_the_end_hook_is_told_of_time_outs(server: Server, hooks: Hooks) -> None:
    go = threading.Event()

    @fastq.job(timeout=0.1)
    async def hang() -> None:
        await asyncio.sleep(DEADLINE_S)

    @fastq.job(timeout=0.1)
    def block() -> str:
        go.wait(DEADLINE_S)
        return "late"

    async with working(server, hang, block, **hooks.settings()) as (client, worker):
        for function in (hang, block):
            with pytest.raises(JobTimeout):
                await (await client.enqueue(function)).result(DEADLINE_S)
        go.set()
        await eventually(lambda: len(worker._executor.running) == 0)
    assert [(end.status, end.reason) for _, end in hooks.ended] == [("failed", "timeout")] * 2
    assert all(isinstance(end.error, TimeoutError) for _, end in hooks.ended)
    assert len(Queue(server).dead()) == 2


async def test_the_end_hook_is_told_of_results_that_cannot_be_carried(
    server: Server, hooks: Hooks
) -> None:
    async def bad() -> Any:
        return lambda: None

    async with working(server, bad, **hooks.settings()) as (client, _):
        with pytest.raises(JobFailed):
            await (await client.enqueue(bad)).result(DEADLINE_S)
    assert [type(end.error).__name__ for _, end in hooks.ended] == ["SerializationError"]


async def test_the_end_hook_is_not_told_of_jobs_that_are_handed_back(
    server: Server, hooks: Hooks
) -> None:
    async def hang() -> None:
        await asyncio.sleep(DEADLINE_S)

    async with working(server, hang, **hooks.settings()) as (client, worker):
        job = await client.enqueue(hang)
        await eventually(lambda: hooks.started)
        await worker.stop(0)
    assert (hooks.started, hooks.ended) == ([job.id], [])
    assert Queue(server).pending() == {job.id: ("released", 0)}


# What hooks cannot break


class Strange(BaseException):
    pass


@pytest.mark.parametrize("hook", ["on_job_start", "on_job_end"])
@pytest.mark.parametrize("kind", [ValueError, SystemExit, asyncio.CancelledError, Strange])
async def test_what_a_hook_raises_is_logged_and_harmless(
    server: Server, caplog: pytest.LogCaptureFixture, hook: str, kind: Any
) -> None:
    async def broken(ctx: Context, *outcome: Outcome) -> None:
        raise kind("broken hook")

    async with working(server, add, add_sync, fail, **{hook: broken}) as (client, worker):
        assert await (await client.enqueue(add, 1, 2)).result(DEADLINE_S) == 3
        assert await (await client.enqueue(add_sync, 1, 2)).result(DEADLINE_S) == 3
        with pytest.raises(JobFailed, match="no"):
            await (await client.enqueue(fail)).result(DEADLINE_S)
        assert len(worker._executor.running) == 0
    assert caplog.text.count("broken raised; the job goes on") == 3


async def hang_hook(ctx: Context, *outcome: Outcome) -> None:
    await asyncio.sleep(DEADLINE_S * 10)


@pytest.mark.parametrize("hook", ["on_job_start", "on_job_end"])
async def test_a_hook_that_hangs_is_given_up(
    server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    monkeypatch.setattr("fastq.executor._HOOK_LIMIT_S", 0.1)
    async with working(server, add, max_jobs=1, **{hook: hang_hook}) as (client, _):
        assert await (await client.enqueue(add, 1, 2)).result(DEADLINE_S) == 3
    assert "hang_hook raised; the job goes on" in caplog.text


async def test_the_start_hook_is_part_of_the_job_s_time(server: Server) -> None:
    async with working(server, add, on_job_start=hang_hook, job_timeout=0.1) as (client, _):
        with pytest.raises(JobTimeout):
            await (await client.enqueue(add, 1, 2)).result(DEADLINE_S)


async def test_the_end_hook_is_not_part_of_the_job_s_time(server: Server) -> None:
    async def slow(ctx: Context, outcome: Outcome) -> None:
        await asyncio.sleep(0.5)

    async with working(server, add, on_job_end=slow, job_timeout=0.2) as (client, _):
        assert await (await client.enqueue(add, 1, 2)).result(DEADLINE_S) == 3


@pytest.mark.parametrize("hook", ["on_job_start", "on_job_end"])
async def test_a_hook_that_hangs_does_not_hold_up_a_stop(server: Server, hook: str) -> None:
    async with working(server, add, **{hook: hang_hook}) as (client, worker):
        job = await client.enqueue(add, 1, 2)
        await eventually(lambda: len(worker._executor.running) == 1)
        await worker.stop(0)
        if hook == "on_job_start":
            assert Queue(server).pending() == {job.id: ("released", 0)}
        else:  # the job itself was done
            assert await job.result(DEADLINE_S) == 3


async def test_hooks_run_for_many_jobs_at_once(server: Server, hooks: Hooks) -> None:
    async with working(server, add, add_sync, max_jobs=20, **hooks.settings()) as (client, _):
        calls = [fastq.call(function, n, n) for n in range(100) for function in (add, add_sync)]
        jobs = await client.enqueue_many(calls)
        assert [await job.result(DEADLINE_S) for job in jobs] == [c.args[0] * 2 for c in calls]
    assert sorted(hooks.started) == sorted(job_id for job_id, _ in hooks.ended)
    assert sorted(hooks.started) == sorted(job.id for job in jobs)
