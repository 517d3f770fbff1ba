"""What may be in `cron_jobs`, and what a worker makes of it."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import fastq
from fastq import Client, ConfigError, Context, cron
from fastq.cron import CronEntry, cron_entries, zone_of
from fastq.functions import collect
from fastq.serializers import resolve
from reference import xadd

JSON, PICKLE = resolve("json"), resolve("pickle")
BERLIN = ZoneInfo("Europe/Berlin")
TITLE = "cron('*/5 * * * *')"


async def add(ctx: Context, x: int, y: int = 0) -> int:
    return x + y


async def refresh() -> None: ...


def other_refresh() -> Any:
    async def refresh() -> None: ...

    return refresh


class Service:
    async def sweep(self) -> None: ...


lambda_: Any = lambda: None  # noqa: E731
# What a type checker would refuse.
wrong_call: Any = fastq.call


def entry(fn: Any, **options: Any) -> CronEntry:
    return cron("*/5 * * * *", fn, **options).entry(JSON, UTC)


def entries(jobs: Any, functions: list[Any] | None = None) -> tuple[CronEntry, ...]:
    return cron_entries(jobs, collect(functions or []), JSON, UTC)


def next_of(found: CronEntry, after: str) -> str:
    tick_ms = found.schedule.next_after(int(datetime.fromisoformat(after).timestamp()) * 1000)
    assert tick_ms is not None
    return datetime.fromtimestamp(tick_ms / 1000, UTC).isoformat()


def test_an_entry_is_what_a_worker_enqueues() -> None:
    found = entry(fastq.call(add, 1, y=2), name="sum", unique=False, catch_up=True)
    assert (found.name, found.function, found.fields) == ("sum", "add", ())
    assert (found.unique, found.catch_up, found.call.fn) == (False, True, add)
    assert JSON.load_call(found.payload) == ((1,), {"y": 2})


def test_what_is_not_given() -> None:
    found = entry(refresh)
    assert (found.name, found.function, found.fields) == ("refresh", "refresh", ())
    assert (found.unique, found.catch_up) == (True, False)
    assert JSON.load_call(found.payload) == ((), {})


@pytest.mark.parametrize(
    "call",
    [
        fastq.call(refresh),
        fastq.call(add, 1, y=2),
        fastq.call("by.name", "é", None, when=[1.5]),
        fastq.call(fastq.job(add, name="sum", timeout=3), 1),
        fastq.call(add, 1).options(timeout=3, max_tries=2, keep_result=0),
        fastq.call(add, 1).options(timeout=None, keep_result=None).options(max_tries=7),
    ],
    ids=["bare", "arguments", "named", "decorated", "options", "options twice"],
)
async def test_an_entry_holds_what_a_producer_would_send(call: fastq.Call[Any]) -> None:
    async with Client() as client:
        found = entry(call)
        sent = xadd(client._keys.stream, found.function.encode(), found.fields, found.payload)
        assert client._pack_call(call) == sent


def test_options_of_the_call_are_carried() -> None:
    call = fastq.call(add, 1).options(timeout=3, max_tries=2, keep_result=0)
    assert entry(call).fields == (b"k", b"0", b"o", b'{"timeout":3.0,"max_tries":2}')


def test_the_serializer_is_the_workers() -> None:
    found = cron("* * * * *", fastq.call(add, 1, y=2)).entry(PICKLE, UTC)
    assert PICKLE.load_call(found.payload) == ((1,), {"y": 2})


def test_names_tell_arguments_apart_and_stay() -> None:
    calls = [fastq.call(add, 1), fastq.call(add, 1, 2), fastq.call(add, 1, y=2), fastq.call(add, 2)]
    names = [entry(call).name for call in calls]
    # Written down: a new version must not rename the entries that are on servers.
    assert names == ["add-66509c5d", "add-6fbe6952", "add-4df58186", "add-d2bfc00a"]
    assert entry(fastq.call(add, x=1)).name == "add-6c5c58e6"
    assert entry(fastq.call("add", 1)).name == names[0]


_CALL = "fastq.call('mail', {'ada', 'bob', 'eve', 'joe'}, to={'b': frozenset('xyz'), 'a': 1.5})"


@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_process_makes_the_same_names(seed: str) -> None:
    code = (
        "from datetime import UTC; import fastq; from fastq.serializers import resolve;"
        f"job = fastq.cron('* * * * *', {_CALL});"
        "print(*(job.entry(resolve(codec), UTC).name for codec in ('json', 'pickle')))"
    )
    names = subprocess.check_output(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": seed},
        cwd=Path(__file__).parent.parent,
        text=True,
    )
    assert names == "mail-ec6cde40 mail-ec6cde40\n"


def test_what_json_cannot_carry_is_named_by_what_can() -> None:
    calls = [fastq.call("add", {1: 2j}), fastq.call("add", {1: 3j})]
    names = {cron("* * * * *", call).entry(PICKLE, UTC).name for call in calls}
    assert len(names) == 2
    assert all(name.startswith("add-") for name in names)


@pytest.mark.parametrize("timezone", ["Europe/Berlin", BERLIN, timezone(timedelta(hours=2))])
def test_an_entry_goes_by_its_own_time_zone(timezone: str | tzinfo) -> None:
    found = cron("0 12 * * *", refresh, timezone=timezone).entry(JSON, ZoneInfo("Asia/Tokyo"))
    assert next_of(found, "2026-05-01T00:00Z") == "2026-05-01T10:00:00+00:00"


def test_else_an_entry_goes_by_the_time_zone_of_the_settings() -> None:
    found = cron("0 12 * * *", refresh).entry(JSON, ZoneInfo("Asia/Tokyo"))
    assert next_of(found, "2026-05-01T00:00Z") == "2026-05-01T03:00:00+00:00"


_RECORDED = (
    "{}: job_id, defer_by, defer_until and expires are no options of a cron job: its ticks say"
    " when it is due."
)
_NO_ZONE = "{} must be the name of a time zone such as 'Europe/Berlin', or a tzinfo, not {!r}."
_CALL_OF = fastq.call(refresh).options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fn": 5}, "{} takes a function, its name or fastq.call(…), not 5."),
        ({"fn": wrong_call(5)}, "{} takes a function, its name or fastq.call(…), not <call of 5>."),
        ({"fn": _CALL_OF(job_id="mine")}, _RECORDED),
        ({"fn": _CALL_OF(defer_by=5)}, _RECORDED),
        ({"fn": _CALL_OF(defer_until=datetime(2026, 5, 1, tzinfo=UTC))}, _RECORDED),
        ({"fn": _CALL_OF(expires=60)}, _RECORDED),
        ({"fn": _CALL_OF(expires=60).options(timeout=3)}, _RECORDED),
        ({"name": ""}, "{}: name must be a non-empty string, not ''."),
        ({"name": "a\nb"}, "{}: name must be a non-empty string, not 'a\\nb'."),
        ({"name": 5}, "{}: name must be a non-empty string, not 5."),
        ({"unique": 1}, "{}: unique must be True or False, not 1."),
        ({"catch_up": None}, "{}: catch_up must be True or False, not None."),
        ({"timezone": "Nowhere"}, _NO_ZONE.format("{}: timezone", "Nowhere")),
        ({"timezone": 5}, _NO_ZONE.format("{}: timezone", 5)),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)  # fmt: skip
def test_options_that_cannot_be_are_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        entry(**({"fn": refresh} | options))
    assert str(wrong.value) == message.format(TITLE)


@pytest.mark.parametrize(
    "value",
    [None, 5, "", "Nowhere/Land", "Europe", "../etc", "a\0b", "zone.tab", "\udc80", "UTC\n"],
    ids=ascii,
)
def test_what_is_no_time_zone_is_told(value: object) -> None:
    with pytest.raises(ConfigError) as wrong:
        zone_of("timezone", value)
    assert str(wrong.value) == _NO_ZONE.format("timezone", value)


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (add, f"{TITLE}: add() missing 1 required argument: 'x'"),
        (wrong_call(add, 1, 2, 3), f"{TITLE}: add() takes 2 positional arguments but 3 were given"),
        (wrong_call(add, 1, z=2), f"{TITLE}: add() got an unexpected keyword argument 'z'"),
        (wrong_call(add, 1, x=2), f"{TITLE}: add() got multiple values for argument 'x'"),
        (
            wrong_call(add, 1j),
            f"{TITLE}: argument 'x' of type complex cannot be carried by JSON: values of type"
            " complex are not supported; pass what JSON can hold, or use a serializer that can"
            " carry it, on both sides.",
        ),
        (lambda_, f"{lambda_!r} has no name of its own: use job(fn, name=…)."),
    ],
    ids=["few", "many", "unknown", "twice", "carried", "nameless"],
)
def test_a_call_that_cannot_be_is_told(fn: Any, message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        entry(fn)
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        (None, "cron_jobs must be a list of cron(…), not None."),
        ("refresh", "cron_jobs must be a list of cron(…), not 'refresh'."),
        ({}, "cron_jobs must be a list of cron(…), not {{}}."),
        (cron("* * * * *", refresh), "cron_jobs must be a list of cron(…), not {!r}."),
        ([refresh], "cron_jobs: {0[0]!r} is not made by cron(…)."),
        (
            [cron("* * * * *", refresh), cron("0 * * * *", refresh)],
            "cron_jobs: two are called 'refresh'. Give one of them another name.",
        ),
        (
            [cron("* * * * *", refresh), cron("0 * * * *", fastq.call(add, 1), name="refresh")],
            "cron_jobs: two are called 'refresh'. Give one of them another name.",
        ),
        (
            [cron("* * * * *", "mail")],
            "cron('* * * * *'): no function is called 'mail'. Add it to functions.",
        ),
        (
            [cron("* * * * *", refresh), cron("0 * * * *", other_refresh(), name="other")],
            "cron('0 * * * *'): another function is called 'refresh'. Give one of them another"
            " name: @job(name=…).",
        ),
    ],
    ids=["none", "text", "mapping", "single", "function", "same", "name", "unknown", "function's"],
)
def test_jobs_that_cannot_be_are_told(jobs: Any, message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        entries(jobs)
    assert str(wrong.value) == message.format(jobs)


def test_a_function_of_the_same_name_is_told() -> None:
    with pytest.raises(ConfigError) as wrong:
        entries([cron("* * * * *", refresh)], [other_refresh()])
    assert str(wrong.value) == (
        "cron('* * * * *'): another function is called 'refresh'. Give one of them another name:"
        " @job(name=…)."
    )


def test_functions_that_only_cron_names_are_registered() -> None:
    sweep = Service().sweep
    functions = collect([add])
    jobs = (
        cron("* * * * *", fastq.call(add, 1)),
        cron("* * * * *", refresh),
        cron("0 * * * *", sweep),
    )
    found = cron_entries(jobs, functions, JSON, UTC)
    assert [each.function for each in found] == ["add", "refresh", "sweep"]
    assert [info.call for info in functions.values()] == [add, refresh, sweep]


def test_a_function_may_be_named_by_both() -> None:
    service = Service()
    functions = collect([refresh, service.sweep])
    jobs = [
        cron("0 * * * *", "refresh"),
        cron("* * * * *", refresh, name="often"),
        cron("* * * * *", service.sweep),
    ]
    found = cron_entries(jobs, functions, JSON, UTC)
    assert [(each.name, each.function) for each in found] == [
        ("refresh", "refresh"),
        ("often", "refresh"),
        ("sweep", "sweep"),
    ]
    assert list(functions) == ["refresh", "sweep"]


def test_no_jobs_are_no_entries() -> None:
    assert entries([]) == entries(()) == ()
