"""Options of a job, on a producer and on a call: what is taken, what refused, which goes before."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import fastq
from fastq import Client, ConfigError
from fastq.durations import UNSET
from fastq.options import EnqueueOptions
from fastq.producer import Recorded

SECONDS = " must be a positive number of seconds or a timedelta"
AT = datetime(2030, 1, 2, 3, 4, 5, 678_000, UTC)
AT_MS = 1_893_553_445_678
EAST = timezone(timedelta(hours=5, minutes=30))
NONE = EnqueueOptions()


async def add(x: int, y: int = 10) -> int:
    return x + y


def producer(**options: Any) -> fastq.Producer:
    """One that never connects."""
    return Client("redis://127.0.0.1:1/0").options(**options)


def of_client(**options: Any) -> EnqueueOptions:
    return producer(**options)._options


def of_call(**options: Any) -> EnqueueOptions:
    found = fastq.call(add, 1).options(**options)._options
    assert found is not None
    return found


Way = Callable[..., EnqueueOptions]
each_way = pytest.mark.parametrize("way", [of_client, of_call], ids=["client", "call"])


# What is taken

TAKEN: list[tuple[dict[str, Any], EnqueueOptions]] = [
    ({}, NONE),
    ({"job_id": "welcome-42"}, EnqueueOptions(job_id="welcome-42")),
    ({"job_id": None}, NONE),
    ({"defer_by": 30}, EnqueueOptions(defer_by_ms=30_000)),
    ({"defer_by": 0.25}, EnqueueOptions(defer_by_ms=250)),
    ({"defer_by": timedelta(minutes=2)}, EnqueueOptions(defer_by_ms=120_000)),
    ({"defer_by": 0}, EnqueueOptions(defer_by_ms=0)),
    ({"defer_by": timedelta(0)}, EnqueueOptions(defer_by_ms=0)),
    ({"defer_by": None}, NONE),
    ({"defer_until": AT}, EnqueueOptions(defer_until_ms=AT_MS)),
    ({"defer_until": AT.astimezone(EAST)}, EnqueueOptions(defer_until_ms=AT_MS)),
    ({"defer_until": datetime(1960, 1, 1, tzinfo=UTC)}, EnqueueOptions(defer_until_ms=0)),
    ({"defer_until": None, "defer_by": 1}, EnqueueOptions(defer_by_ms=1_000)),
    ({"expires": 1.5}, EnqueueOptions(expires_ms=1_500)),
    ({"expires": timedelta(hours=1)}, EnqueueOptions(expires_ms=3_600_000)),
    ({"expires": None}, NONE),
    ({"timeout": 2}, EnqueueOptions(timeout_s=2)),
    ({"timeout": timedelta(minutes=1)}, EnqueueOptions(timeout_s=60)),
    # No limit, which is more than none that is given.
    ({"timeout": None}, EnqueueOptions(timeout_s=None)),
    ({"timeout": UNSET, "keep_result": UNSET}, NONE),
    ({"max_tries": 1}, EnqueueOptions(max_tries=1)),
    ({"max_tries": 1_000_000}, EnqueueOptions(max_tries=1_000_000)),
    ({"max_tries": None}, NONE),
    ({"keep_result": 60}, EnqueueOptions(keep_ms=60_000)),
    ({"keep_result": timedelta(days=1)}, EnqueueOptions(keep_ms=86_400_000)),
    ({"keep_result": 0}, EnqueueOptions(keep_ms=0)),
    ({"keep_result": 0.0001}, EnqueueOptions(keep_ms=1)),
    # For ever.
    ({"keep_result": None}, EnqueueOptions(keep_ms=-1)),
    ({"defer_by": 1, "expires": 1.001}, EnqueueOptions(defer_by_ms=1_000, expires_ms=1_001)),
    # Whether it is too late then, only the server's clock can tell.
    ({"defer_until": AT, "expires": 1}, EnqueueOptions(defer_until_ms=AT_MS, expires_ms=1_000)),
]


@each_way
@pytest.mark.parametrize(("options", "found"), TAKEN, ids=[str(n) for n in range(len(TAKEN))])
def test_what_is_given_is_taken(way: Way, options: dict[str, Any], found: EnqueueOptions) -> None:
    assert way(**options) == found


IDS = ["a", "12", "12-", "-3", "1-2-3", "a1-2", "1-2b", "cron", "CRON:x", "a cron:x", "Ä {b} :c",
       "日", "x" * 512, "ä" * 256]  # fmt: skip


@each_way
@pytest.mark.parametrize("job_id", IDS, ids=[str(n) for n in range(len(IDS))])
def test_ids_of_ones_own_are_taken(way: Way, job_id: str) -> None:
    assert way(job_id=job_id) == EnqueueOptions(job_id=job_id)


@each_way
@pytest.mark.parametrize("name", ["defer_by", "expires"])
@pytest.mark.parametrize(
    ("duration", "ms"),
    [(0.0001, 1), (1e-12, 1), (0.0011, 2), (timedelta(microseconds=1), 1), (1.0005, 1_001),
     (timedelta(milliseconds=7, microseconds=1), 8), (timedelta(milliseconds=7), 7)],
)  # fmt: skip
def test_parts_of_a_ms_are_rounded_up(way: Way, name: str, duration: Any, ms: int) -> None:
    assert getattr(way(**{name: duration}), f"{name}_ms") == ms


@each_way
def test_no_delay_becomes_shorter_by_rounding(way: Way) -> None:
    for ms in range(1, 20_000, 7):
        assert 0 <= way(defer_by=ms / 1000).defer_by_ms - ms <= 1  # type: ignore[operator]
        at = AT + timedelta(milliseconds=ms, microseconds=ms % 2)
        assert way(defer_until=at).defer_until_ms == AT_MS + ms + ms % 2


def test_which_jobs_have_a_record() -> None:
    """All others are a plain XADD."""
    plain: list[dict[str, Any]] = [
        {}, {"defer_by": 0}, {"timeout": None, "max_tries": 2, "keep_result": 0}
    ]  # fmt: skip
    recorded: list[dict[str, Any]] = [
        {"job_id": "a"}, {"defer_by": 1e-9}, {"defer_until": AT}, {"expires": 1},
        {"defer_until": datetime(1970, 1, 1, tzinfo=UTC)},
    ]  # fmt: skip
    for options in plain:
        assert type(producer(**options)._pack(add, (1,), {})) is bytes
        assert type(producer()._pack_call(fastq.call(add, 1).options(**options))) is bytes
    for options in recorded:
        assert type(producer(**options)._pack(add, (1,), {})) is Recorded
        assert type(producer()._pack_call(fastq.call(add, 1).options(**options))) is Recorded


def test_a_job_without_an_id_gets_one_that_nobody_can_guess() -> None:
    later = producer(defer_by=1)
    ids = {later._pack(add, (1,), {}).job_id for _ in range(1_000)}  # type: ignore[union-attr]
    assert len(ids) == 1_000
    assert {len(job_id) for job_id in ids} == {22}


# What is refused

A_NUMBER: list[Any] = ["soon", -1, True, float("nan"), float("inf"), 1e9, [1]]
DURATIONS = {
    "defer_by": (", or 0 for at once", A_NUMBER),
    "expires": ("", [*A_NUMBER, 0, timedelta(0)]),
    "timeout": (", or None for no limit", [*A_NUMBER, 0, timedelta(0)]),
    "keep_result": (", 0 for not at all, or None for ever", A_NUMBER),
}
NOT_DURATIONS = [
    ({name: value}, f"{name}{SECONDS}{also}, not {value!r}.")
    for name, (also, values) in DURATIONS.items()
    for value in (*values, timedelta(seconds=-1), timedelta(days=20_000))
]
TAKEN_IDS = [
    ({"job_id": job_id}, f"job_id {job_id!r} cannot be used: ids of the form digits-digits are the "
     "server's, and cron:… are those of cron jobs. Put a word before it.")
    for job_id in ("12-3", "0-0", "1700000000000-0", "cron:", "cron:daily", "cron:a b")
]  # fmt: skip
NO_IDS = [
    ({"job_id": job_id}, f"job_id must be a non-empty, printable string, not {job_id!r}.")
    for job_id in ("", 5, b"mine", True, "a\n", "cron:\n", "12-3\n", "\x00", "\ud800", "\u200b")
]
REFUSED: list[tuple[dict[str, Any], str]] = [
    *NOT_DURATIONS,
    *TAKEN_IDS,
    *NO_IDS,
    ({"job_id": "x" * 513}, f"job_id has more than 512 bytes: {'x' * 40!r}…"),
    ({"job_id": "ä" * 257}, f"job_id has more than 512 bytes: {'ä' * 40!r}…"),
    *(
        ({"max_tries": value},
         f"max_tries must be a whole number from 1 to 1000000, not {value!r}.")
        for value in (0, -1, 1.0, True, "3", 1_000_001)
    ),
    *(
        ({"defer_until": value}, f"defer_until must be an aware datetime, not {value!r}.")
        for value in (5, "2030-01-02", AT.date(), timedelta(1))
    ),
    ({"defer_by": 0, "defer_until": AT},
     "defer_by and defer_until exclude each other: give one of them."),
    ({"defer_by": 2, "expires": 2},
     "The job would be due 2 s after it is enqueued, and expire 2 s after: let it expire later. "
     "Both count from enqueueing."),
    ({"defer_by": timedelta(minutes=1), "expires": 1.5},
     "The job would be due 60 s after it is enqueued, and expire 1.5 s after: let it expire later. "
     "Both count from enqueueing."),
]  # fmt: skip


@each_way
@pytest.mark.parametrize(("options", "says"), REFUSED, ids=[str(n) for n in range(len(REFUSED))])
def test_what_cannot_be_is_refused(way: Way, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        way(**options)
    assert str(caught.value) == says


@each_way
def test_a_naive_datetime_is_a_value_error(way: Way) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        way(defer_until=datetime(2030, 1, 2))
    assert type(caught.value) is ValueError
    assert str(caught.value) == (
        "defer_until is a naive datetime (datetime.datetime(2030, 1, 2, 0, 0)), which may mean any "
        "time zone. Give it one: datetime.now(UTC), or .astimezone()."
    )


def test_unknown_options_are_type_errors() -> None:
    call: Any = fastq.call(add, 1)
    client: Any = Client("redis://h")
    for way, name in ((client, "Client"), (call, "Call")):
        with pytest.raises(TypeError) as caught:
            way.options(jobid="a")
        assert str(caught.value).startswith(
            f"{name}.options() got an unexpected keyword argument 'jobid'"
        )
    # Which queue it goes to is the producer's to say.
    with pytest.raises(TypeError, match="unexpected keyword argument 'queue'"):
        call.options(queue="mail")


QUEUES: list[tuple[Any, str]] = [
    *((name, f"A queue name must be a non-empty string, not {name!r}.") for name in ("", 5, b"q")),
    *(
        (name, f"The queue name {name!r} has braces or control characters: braces would move it to "
         "another cluster slot. Choose another name.")
        for name in ("a{b", "}", "a\n")
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "says"), QUEUES, ids=[str(n) for n in range(len(QUEUES))])
def test_a_queue_that_cannot_be_is_refused(name: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        producer(queue=name)
    assert str(caught.value) == says


def test_a_queue_is_taken() -> None:
    assert (producer(queue="mail").queue, producer(queue=None).queue) == ("mail", "default")


# Whose goes before

PRODUCERS: dict[str, Any] = {
    "job_id": "theirs", "expires": 60, "timeout": 5, "max_tries": 2, "keep_result": 1
}  # fmt: skip
MERGED: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({}, {}, {}),
    (PRODUCERS, {}, PRODUCERS),
    ({}, PRODUCERS, PRODUCERS),
    *((PRODUCERS, {name: value}, {**PRODUCERS, name: value}) for name, value in (
        ("job_id", "mine"), ("expires", 7), ("timeout", 9), ("timeout", None), ("max_tries", 1),
        ("keep_result", 0), ("keep_result", None), ("defer_by", 3), ("defer_until", AT),
    )),
    # One time replaces the other, also that of the other kind, also by "at once".
    ({"defer_by": 3}, {"defer_until": AT}, {"defer_until": AT}),
    ({"defer_until": AT}, {"defer_by": 3}, {"defer_by": 3}),
    ({"defer_until": AT}, {"defer_by": 0}, {"defer_by": 0}),
    ({"defer_by": 3, "job_id": "theirs"}, {"defer_by": 4}, {"defer_by": 4, "job_id": "theirs"}),
    # What is None says nothing, where None means nothing.
    ({"defer_by": 3, "expires": 60}, {"defer_by": None, "expires": None, "job_id": None},
     {"defer_by": 3, "expires": 60}),
]  # fmt: skip
each_merge = pytest.mark.parametrize(
    ("theirs", "mine", "both"), MERGED, ids=[str(n) for n in range(len(MERGED))]
)


@each_merge
def test_a_call_of_options_goes_before_those_before(
    theirs: dict[str, Any], mine: dict[str, Any], both: dict[str, Any]
) -> None:
    once = fastq.call(add, 1).options(**theirs)
    assert once.options(**mine)._options == of_call(**both)
    assert once._options == of_call(**theirs), "the call before is as it was"


@each_merge
def test_a_calls_options_go_before_its_producers(
    theirs: dict[str, Any], mine: dict[str, Any], both: dict[str, Any]
) -> None:
    found = producer(**theirs)._pack_call(fastq.call(add, 1).options(**mine))
    expected = producer(**both)._pack(add, (1,), {})
    assert type(found) is type(expected)
    assert comparable(found) == comparable(expected)


def comparable(packed: bytes | Recorded) -> Any:
    """Without what is made anew each time: the nonce, and an id that nobody gave."""
    if isinstance(packed, bytes):
        return packed
    given = len(packed.job_id) != 22
    return packed._args[0] if given else "", packed._args[2:], packed._keys[:2]


TOGETHER = (
    "The job would be due 90 s after it is enqueued, and expire 60 s after: let it expire later. "
    "Both count from enqueueing."
)


def test_options_that_do_not_fit_each_other_are_refused_when_they_meet() -> None:
    for theirs, mine in (({"expires": 60}, {"defer_by": 90}), ({"defer_by": 90}, {"expires": 60})):
        call = fastq.call(add, 1).options(**mine)  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            fastq.call(add, 1).options(**theirs).options(**mine)  # type: ignore[arg-type]
        assert str(caught.value) == TOGETHER
        with pytest.raises(ConfigError) as caught:
            asyncio.run(producer(**theirs).enqueue_many([call]))
        assert str(caught.value) == f"enqueue_many: call 0: {TOGETHER} 0 jobs were enqueued."


def test_a_job_may_have_arguments_that_are_named_like_options() -> None:
    def named(**values: Any) -> None: ...

    values = {"job_id": "12-3", "defer_by": -1, "timeout": "x", "queue": "{", "fn": 1, "self": 2}
    packed = producer()._pack(named, (), values)
    assert isinstance(packed, bytes)
    assert b'"defer_by":-1' in packed
    again = producer()._pack_call(fastq.call(named, **values).options(job_id="mine"))
    assert isinstance(again, Recorded)
    assert again.job_id == "mine"
