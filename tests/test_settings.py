"""Settings: what is read, from what, and what is said of values and names that are wrong."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fastq import ConfigError, Context, Outcome, RedisSettings, WorkerSettings, exponential
from fastq.settings import Settings

EXAMPLE = Path(__file__).parent / "typing" / "settings_example.py"


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


@asynccontextmanager
async def lifespan(settings: Any) -> AsyncIterator[dict[str, int]]:
    yield {"a": 1}


async def on_job_start(ctx: Context) -> None: ...


async def on_job_end(ctx: Context, outcome: Outcome) -> None: ...


def settings_class(**values: Any) -> type[WorkerSettings]:
    return type("Worker", (WorkerSettings,), {"functions": [add], **values})


def read(**values: Any) -> Settings:
    return Settings.read(settings_class(**values))


# Defaults


def test_defaults_are_those_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTQ_REDIS_URL", raising=False)
    found = read()
    assert found.redis.address == "redis://localhost:6379/0"
    assert (found.queue, found.max_jobs, found.burst) == ("default", 100, False)
    assert (found.job_timeout_s, found.keep_result_s, found.shutdown_timeout_s) == (300, 600, 25)
    assert (found.lifespan, found.on_job_start, found.on_job_end) == (None, None, None)
    assert (found.codec.converts, found.max_payload) == (True, 16 * 1024 * 1024)
    assert (found.policy.max_tries, found.policy.retry_on) == (5, ())
    assert found.policy.backoff == exponential(base=1, factor=2, maximum=3600, jitter=True)
    assert (found.keep_dead, found.cron) == ((10_000, 7 * 86_400), ())


def test_defaults_cannot_be_altered_by_accident() -> None:
    for name, value in vars(WorkerSettings).items():
        if not name.startswith("_"):
            hash(value)


@pytest.mark.typing_checks
def test_the_example_that_the_type_checkers_see_can_be_read() -> None:
    spec: dict[str, Any] = {"__name__": "settings_example"}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), spec)
    found = Settings.read(spec["Worker"])
    assert list(found.functions) == ["add", "mail", "thumbnail"]
    assert (found.queue, found.max_jobs) == ("high", 50)
    assert found.lifespan is spec["lifespan"]
    small = Settings.read(spec["Small"])
    assert (small.queue, small.max_jobs, small.on_job_end) == ("small", 5, spec["ended"])
    elaborate = Settings.read(spec["Elaborate"])
    assert list(elaborate.functions) == ["add", "dumps"]
    assert (elaborate.job_timeout_s, elaborate.keep_result_s) == (300, None)
    configured = Settings.read(spec["Configured"]("redis://h:1/2", 7))
    assert (configured.redis.address, configured.max_jobs) == ("redis://h:1/2", 7)
    with pytest.raises(ConfigError):
        Settings.read(spec["Wrong"])


@pytest.mark.typing_checks
def test_the_example_with_times_can_be_read() -> None:
    spec: dict[str, Any] = {"__name__": "time_example"}
    path = EXAMPLE.with_name("time_example.py")
    exec(compile(path.read_text(), str(path), "exec"), spec)
    found, other = Settings.read(spec["Worker"]), Settings.read(spec["Other"])
    assert list(found.functions) == ["add", "mail", "thumbnail", "refresh", "report"]
    assert [entry.name.partition("-")[0] for entry in found.cron] == ["refresh", "report", "report"]
    assert [str(entry.schedule.zone) for entry in found.cron] == ["UTC", "Europe/Berlin", "UTC"]
    assert found.policy.retry_on == (ConnectionError, OSError)
    assert found.policy.backoff is spec["waiting"]
    assert (found.keep_dead, other.keep_dead) == ((1_000, 86_400), (1_000, None))
    assert other.policy.retry_on == (ConnectionError,)
    assert other.policy.backoff(3) == 2


# Values that are wrong: name -> value -> the whole message

POSITIVE = "must be a positive number of seconds or a timedelta"
LIMIT = f"job_timeout {POSITIVE}, or None for no limit, not "
KEEP = f"keep_result {POSITIVE}, 0 for not at all, or None for ever, not "
WAIT = f"shutdown_timeout {POSITIVE}, or 0, not "
HOW = "Use redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path?db=0."


async def takes_nothing() -> None: ...


def not_async(ctx: Context) -> None: ...


WRONG: list[tuple[str, Any, str]] = [
    ("functions", (), "functions is empty: name at least one function that jobs may run."),
    ("functions", "a:b", "functions must be a list of functions, not 'a:b'."),
    ("functions", 5, "functions must be a list of functions, not 5."),
    ("functions", None, "functions must be a list of functions, not None."),
    ("functions", [5], "functions: 5 is not a function or an import string."),
    ("redis", 6379, "redis must be a URL or RedisSettings, not int."),
    ("redis", "http://a", f"The Redis URL has the scheme 'http'. {HOW}"),
    ("queues", "default", "queues must be a list of names, not 'default'."),
    ("queues", {"a": 1}, "queues must be a list of names, not {'a': 1}."),
    ("queues", ["a", "b"], "queues names 2 queues; this version serves one a worker."),
    ("queues", [""], "A queue name must be a non-empty string, not ''."),
    ("queues", [5], "A queue name must be a non-empty string, not 5."),
    (
        "queues",
        ["a{b}"],
        "The queue name 'a{b}' has braces or control characters: braces would move it to another"
        " cluster slot. Choose another name.",
    ),
    *(
        ("max_jobs", value, f"max_jobs must be a whole number from 1 to 100000, not {value!r}.")
        for value in (0, -1, 1.5, "5", None, True, 100_001)
    ),
    *(
        ("job_timeout", value, f"{LIMIT}{value!r}.")
        for value in (0, -1, "5", True, float("nan"), float("inf"), timedelta(0), 1e9)
    ),
    *(("keep_result", value, f"{KEEP}{value!r}.") for value in (-1, "5", False, timedelta(-1))),
    *(("shutdown_timeout", value, f"{WAIT}{value!r}.") for value in (-1, "5", None, False)),
    ("cron_jobs", "* * * * *", "cron_jobs must be a list of cron(…), not '* * * * *'."),
    ("cron_jobs", [5], "cron_jobs: 5 is not made by cron(…)."),
    ("timezone", "Europe/Nowhere", "timezone must be the name of a time zone such as"
     " 'Europe/Berlin', or a tzinfo, not 'Europe/Nowhere'."),
    ("lifespan", 5, "lifespan must be a function (settings), not 5."),
    ("lifespan", lambda: None, "lifespan is called with (settings), which does not fit: too many"
     " positional arguments."),
    ("on_job_start", "x", "on_job_start must be a function (ctx), not 'x'."),
    ("on_job_start", takes_nothing, "on_job_start is called with (ctx), which does not fit: too"
     " many positional arguments."),
    ("on_job_start", not_async, "on_job_start must be an async function."),
    ("on_job_end", on_job_start, "on_job_end is called with (ctx, outcome), which does not fit:"
     " too many positional arguments."),
    ("on_job_end", 5, "on_job_end must be a function (ctx, outcome), not 5."),
    ("serializer", "yaml", "serializer is 'yaml'; it must be \"json\", \"pickle\" or an object with"
     " dumps and loads"),
    ("serializer", None, "serializer is None; it must be \"json\", \"pickle\" or an object with"
     " dumps and loads"),
    *(
        ("max_payload", value, "max_payload must be a whole number from 1 to 536870912, not "
         f"{value!r}.")
        for value in (0, "1", None, True, 2**30)
    ),
    ("burst", 1, "burst must be True or False, not 1."),
    ("burst", "no", "burst must be True or False, not 'no'."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_a_wrong_value_is_named(name: str, value: Any, message: str) -> None:
    for source, overrides in (
        (settings_class(**{name: value}), {}),
        (settings_class(), {name: value}),
    ):
        with pytest.raises(ConfigError) as wrong:
            Settings.read(source, **overrides)
        assert str(wrong.value) == message


@pytest.mark.parametrize(
    ("name", "value", "attribute", "found"),
    [
        ("queues", ("a",), "queue", "a"),
        ("queues", ["späti"], "queue", "späti"),
        ("max_jobs", 1, "max_jobs", 1),
        ("job_timeout", None, "job_timeout_s", None),
        ("job_timeout", 0.5, "job_timeout_s", 0.5),
        ("job_timeout", timedelta(minutes=1), "job_timeout_s", 60),
        ("keep_result", None, "keep_result_s", None),
        ("keep_result", 0, "keep_result_s", 0),
        ("keep_result", timedelta(0), "keep_result_s", 0),
        ("shutdown_timeout", 0, "shutdown_timeout_s", 0),
        ("shutdown_timeout", timedelta(seconds=3), "shutdown_timeout_s", 3),
        ("redis", RedisSettings(host="h"), "redis", RedisSettings(host="h")),
        ("burst", True, "burst", True),
    ],
)
def test_a_right_value_is_taken(name: str, value: Any, attribute: str, found: Any) -> None:
    assert getattr(read(**{name: value}), attribute) == found
