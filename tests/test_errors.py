"""Every error, provoked: its type and its whole message, which says what to do and tells no secret.

`python tests/test_errors.py` prints the table.
"""

import asyncio
import errno
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from string import Template
from typing import Any

import pytest

import fastq
import provoked as p
from fastq import (
    ConfigError,
    EnqueueError,
    EnqueueUncertain,
    FastqError,
    JobExpired,
    JobFailed,
    JobTimeout,
    PayloadTooLarge,
    ResultNotFound,
    SerializationError,
    ServerUnavailable,
)
from fastq.errors import RedisAway
from lab import SECRET, Lab, add, again, belied, fail, refuse, sleep, uncarried, unkept
from provoked import Provoke
from servers import Server

DEADLINE_S = 20


async def odd(ctx: int) -> None: ...


async def many(n: int) -> Any:
    yield n


def other_add() -> Callable[..., Any]:
    async def add() -> None: ...

    return add


NAMELESS = [lambda x: x, Lab.close][0]
REFUSED = "Redis cannot be reached, nothing was enqueued: redis://127.0.0.1:$port/0: "
NO_SERVER = f"[Errno {errno.ECONNREFUSED}] Connect call failed ('127.0.0.1', $port)."
OR_URL = " Start it, or correct the URL."
NO = "redis://127.0.0.1:$port/0 refused the job: "
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value."
NO_STREAM = " The queue's key is no stream: remove what uses its name, or name another queue."
LOST = "The reply was lost: redis://127.0.0.1:$port/0: "
UNCERTAIN = " The job may have been enqueued; enqueueing it again may run it twice."
BY_JSON = "; pass what JSON can hold, or use a serializer that can carry it, on both sides"
NOT_JSON = " cannot be carried by JSON: "
JOB = "<Job $job in queue 'default'>"
KEPT = " It is kept in the queue's dead jobs."
SAME = " Give the producer and the worker the same version of the function." + KEPT
NO_RESULT = (
    "it never was there, keeps no result (keep_result=0), or its result has expired."
)  # fmt: skip
CLIENT = "<Client of redis://127.0.0.1:$port/0, queue 'default'>"
AGAIN = " Ask again, or give a longer timeout."
URL = "Use redis://[user:password@]host:port/db, rediss:// for TLS, or unix:///path?db=0."

Case = tuple[str, Provoke, type[BaseException], str]

ENQUEUEING: list[Case] = [
    ("away", p.away, EnqueueError, REFUSED + NO_SERVER + OR_URL),
    ("silent", p.silent, EnqueueError, REFUSED + "no answer in time." + OR_URL),
    ("wrong password", p.wrong_password, EnqueueError,
     REFUSED + "WRONGPASS invalid username-password pair or user is disabled." + OR_URL),
    ("no permission", p.no_permission, EnqueueError,
     NO + "NOPERM User default has no permissions to run the 'xadd' command."
     " Let the user's ACL allow the command and the keys *fastq:*."),
    ("full", p.full, EnqueueError,
     NO + "OOM command not allowed when used memory > 'maxmemory'."
     " The server is full (maxmemory): free memory or raise the limit, then try again."),
    ("key of another type", p.wrong_type, EnqueueError, NO + WRONGTYPE + NO_STREAM),
    ("replica", p.replica, EnqueueError,
     NO + "READONLY You can't write against a read only replica."
     " It is a replica: use the URL of its master."),
    ("connection cut", p.cut, EnqueueUncertain, LOST + "the connection was closed." + UNCERTAIN),
    ("no reply", p.no_reply, EnqueueUncertain, LOST + "no reply for 0.4 s." + UNCERTAIN),
    ("many, refused", p.many_refused, EnqueueError,
     "enqueue_many: call 2500: " + NO + WRONGTYPE + NO_STREAM + " 2500 jobs were enqueued."),
    ("naive time", p.naive, ValueError,
     "defer_until is a naive datetime (datetime.datetime(2030, 1, 2, 0, 0)), which may mean any"
     " time zone. Give it one: datetime.now(UTC), or .astimezone()."),
    ("id of the server's form", p.named("12-3"), ConfigError,
     "job_id '12-3' cannot be used: ids of the form digits-digits are the server's, and cron:…"
     " are those of cron jobs. Put a word before it."),
    ("record of another type", p.foreign_record, EnqueueError, NO + WRONGTYPE
     + " A key of the queue is of another type: remove what uses its name, or name another queue."),
    ("too few arguments", p.enqueue(add, 1), TypeError,
     "add() missing 1 required argument: 'y'"),
    ("many, wrong call", p.enqueue_many(fastq.call("add"), fastq.call("a"), 5), TypeError,
     "enqueue_many: call 2: enqueue_many takes fastq.call(function, …), not 5."
     " 2 jobs were enqueued."),
    ("many, wrong arguments", p.enqueue_many(fastq.call("a"), p.TOO_FEW), TypeError,
     "enqueue_many: call 1: add() missing 1 required argument: 'y'. 1 job was enqueued."),
    ("argument", p.enqueue(add, 1, 1j), SerializationError,
     "argument 'y' of type complex" + NOT_JSON + "values of type complex are not supported"
     + BY_JSON),
    ("NaN", p.enqueue("add", [math.nan]), SerializationError,
     "argument 1 of type list" + NOT_JSON + "JSON has no nan" + BY_JSON),
    ("field dropped", p.enqueue(add, p.Seeded(1, 2), 1), SerializationError,
     "argument 'x' of type Seeded" + NOT_JSON + "Seeded has an InitVar, which it does not keep"
     + BY_JSON),
    ("not to be pickled", p.enqueue("add", NAMELESS, serializer="pickle"), SerializationError,
     f"argument 1 of type function cannot be carried by pickle: Can't pickle {NAMELESS!r}:"
     " attribute lookup <lambda> on test_errors failed; pass something that it can carry, such as"
     " an id to look it up by"),
    ("too large", p.enqueue("add", "x" * 200, max_payload=100), PayloadTooLarge,
     "The arguments of add take 204 bytes, more than max_payload (100). Store the data elsewhere"
     " and pass where it is."),
    ("no function", p.enqueue(5), ConfigError, "5 is neither a function nor the name of one."),
    ("no name", p.enqueue(NAMELESS), ConfigError,
     f"{NAMELESS!r} has no name of its own: use job(fn, name=…)."),
    ("empty name", p.enqueue(""), ConfigError,
     "A function's name must be a non-empty string, not ''."),
]  # fmt: skip

RESULTS: list[Case] = [
    ("failed", p.result(fail, "no such user"), JobFailed,
     f"{JOB} ended badly (failed): LookupError: no such user. The worker's traceback is in"
     " .traceback." + KEPT),
    ("tried too often", p.result(again, max_tries=2), JobFailed,
     f"{JOB} ended badly (retries): fastq.retries.Retry: busy. It ran as often as max_tries lets"
     " it." + KEPT),
    ("rejected", p.result(refuse, "no address"), JobFailed,
     f"{JOB} ended badly (rejected): fastq.retries.Reject: no address." + KEPT),
    ("expired", p.expired, JobExpired,
     f"{JOB} ended badly (expired): fastq.errors.JobExpired: It had expired before a worker was"
     " free to start it. Give it longer with expires=…, or run more workers." + KEPT),
    ("over its time", p.result(sleep, 30, limit=0.1), JobTimeout,
     f"{JOB} ended badly (timeout): TimeoutError: ran longer than its time limit of 0.1 s."
     " Give it longer with timeout=…, or let it do less." + KEPT),
    ("wrong number", p.result("add", 1), JobFailed,
     f"{JOB} ended badly (arguments): fastq.decoders.ArgumentsError: add() missing 1 required"
     " argument: 'y'; it is add(x: int, y: int)." + SAME),
    ("wrong type", p.result("add", "one", 2), JobFailed,
     f"{JOB} ended badly (arguments): fastq.decoders.ArgumentsError: add() argument 'x': Expected"
     " `int`, got `str`." + SAME),
    ("unknown function", p.result("nowhere"), JobFailed,
     f"{JOB} ended badly (unknown_function): LookupError: No function 'nowhere' is registered in"
     " this worker. Add it to functions, or deploy the workers that know it." + KEPT),
    ("undecodable", p.undecodable, JobFailed,
     f"{JOB} ended badly (undecodable): fastq.decoders.UndecodableError: add(): the payload is not"
     " the JSON of a call: JSON is malformed: invalid character (byte 0). Give the producer and"
     " the worker the same serializer." + KEPT),
    ("result not carried", p.result(uncarried), JobFailed,
     f"{JOB} ended badly (failed): fastq.errors.SerializationError: the result of type object"
     + NOT_JSON + "values of type object are not supported" + BY_JSON
     + ". The worker's traceback is in .traceback." + KEPT),
    ("result belies its annotation", p.result(belied), SerializationError,
     "the result of belied() is not the int that its annotation says: Expected `int`, got `str`"),
    ("result of another type", p.other_type, SerializationError,
     "The result is not the int that returns= asks for: Expected `int`, got `str`"),
    ("still runs", p.result(sleep, 5, timeout=0.2), TimeoutError,
     f"{JOB} has no result after 0.2 s: it still waits or runs." + AGAIN),
    ("away while waiting", p.result_while_away, TimeoutError,
     f"{JOB} has no result after 1.2 s: Redis cannot be reached (redis://127.0.0.1:$port/0: "
     + NO_SERVER.removesuffix(".") + ")." + AGAIN),
    ("not kept", p.result(unkept), ResultNotFound,
     "There is no result of job $job in queue 'default': " + NO_RESULT),
    ("never was", p.never_was, ResultNotFound,
     "There is no result of job 1-1 in queue 'mail': " + NO_RESULT),
    ("status while away", p.status_while_away, ServerUnavailable,
     "The status of job 1-1 in queue 'default' cannot be told: redis://127.0.0.1:$port/0: "
     + NO_SERVER + " Ask again once Redis is there."),
    ("result of another program", p.foreign_result, SerializationError,
     "What is stored as the result of <Job 1-1 in queue 'default'> was not written by fastq, or by"
     " one that is too new: not an outcome: b'of another program'"),
    ("result key of another type", p.foreign_key, ServerUnavailable,
     "The result at {fastq:default}:result:1-1 cannot be read: " + WRONGTYPE
     + " Mend that, then ask again."),
]  # fmt: skip

MISUSE: list[Case] = [
    ("closed", p.closed, RuntimeError, CLIENT + " was closed. Make a new Client."),
    ("closed while waiting", p.closed_while_waiting, RuntimeError,
     CLIENT + " was closed while a result was waited for. The job goes on; wait for it with"
     " another Client."),
    ("another loop", p.other_loop, RuntimeError,
     CLIENT + " belongs to another event loop. Make a Client in each."),
    ("worker run twice", p.worker_again, RuntimeError, "A Worker runs once. Make a new one."),
    ("burst while away", p.burst_while_away, RedisAway,
     "Redis is away: redis://127.0.0.1:$port/0: " + NO_SERVER + OR_URL),
    ("job id", p.make_job(job_id=""), ConfigError, "A job id is a non-empty string, not ''."),
    ("returns", p.make_job(job_id="1-1", returns=Lab), ConfigError,
     "returns=<class 'lab.Lab'>: results cannot be converted to this type."),
]  # fmt: skip

SETTINGS: list[Case] = [
    ("misspelt", p.settings(max_job=5), ConfigError,
     "Worker has no setting 'max_job'. Did you mean 'max_jobs'?"),
    ("helper", p.settings(helper=5), ConfigError,
     "Worker has no setting 'helper'. A helper's name may start with an underscore."),
    ("number", p.settings(max_jobs=0), ConfigError,
     "max_jobs must be a whole number from 1 to 100000, not 0."),
    ("duration", p.settings(job_timeout="5"), ConfigError,
     "job_timeout must be a positive number of seconds or a timedelta, or None for no limit, not"
     " '5'."),
    ("hook", p.settings(on_job_end=fail), ConfigError,
     "on_job_end is called with (ctx, outcome), which does not fit: too many positional"
     " arguments."),
    ("serializer", p.settings(serializer="yaml"), ConfigError,
     "serializer is 'yaml'; it must be \"json\", \"pickle\" or an object with dumps and loads"),
    ("queue name", p.settings(queues=["a{b}"]), ConfigError,
     "The queue name 'a{b}' has braces or control characters: braces would move it to another"
     " cluster slot. Choose another name."),
    ("no functions", p.settings(functions=[]), ConfigError,
     "functions is empty: name at least one function that jobs may run."),
    ("two of one name", p.settings(functions=[add, other_add()]), ConfigError,
     "functions: two are called 'add': lab.add and test_errors.other_add.<locals>.add."
     " Give one of them another name: @job(name=…)."),
    ("generator", p.settings(functions=[many]), ConfigError,
     "many is a generator: a job function returns its result."),
    ("import string", p.settings(functions=["nowhere:f"]), ConfigError,
     "functions: 'nowhere:f' cannot be imported: No module named 'nowhere'."),
    ("ctx", p.settings(functions=[odd]), ConfigError,
     "odd(): its parameter ctx is annotated int; annotate it fastq.Context or not at all, or give"
     " it another name if it is an argument"),
    ("built-in with @job", p.plain(fastq.job, len), ConfigError,
     "<built-in function len> takes no attributes; use job(fn, name=…) on it."),
    ("path", p.path("provoked:Nothing"), ConfigError,
     "provoked:Nothing: provoked has no 'Nothing'. Name settings as module:Name."),
    ("no settings", p.settings_of(5), ConfigError,
     "Settings are a class, an instance of one or a module, not 5."),
    ("scheme", p.url("http://host"), ConfigError, f"The Redis URL has the scheme 'http'. {URL}"),
    ("database", p.url("redis://:s3cret@host/x"), ConfigError,
     f"The Redis URL names the database 'x', which is no number. {URL}"),
    ("URL", p.url("redis://:s3cret/@host/0"), ConfigError,
     "The Redis URL cannot be read: its host or port is malformed, or its password has a character"
     " that must be encoded (/ as %2F, ? as %3F, # as %23, [ as %5B). " + URL),
    ("TLS file", p.enqueue_at("rediss://:s3cret@host:1/0?ssl_ca_certs=nowhere"), ConfigError,
     "A TLS file of rediss://host:1/0 cannot be read: [Errno 2] No such file or directory."),
]  # fmt: skip

CASES = [*ENQUEUEING, *RESULTS, *MISUSE, *SETTINGS]


async def provoke(lab: Lab, how: Provoke) -> BaseException | None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            await how(lab)
    except Exception as error:
        return error
    return None


def causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        hidden = error.__suppress_context__
        error = error.__cause__ or (None if hidden else error.__context__)


def expected(lab: Lab, message: str) -> str:
    return Template(message).safe_substitute(port=lab.port, job=lab.job.id if lab.job else "")


@pytest.fixture
async def lab(make_server: Callable[..., Server]) -> AsyncIterator[Lab]:
    lab = Lab(make_server("valkey-9.1", "--requirepass", SECRET))
    yield lab
    await lab.close()


@pytest.mark.parametrize(
    ("how", "kind", "message"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
async def test_a_message_says_what_is_wrong_and_what_to_do(
    lab: Lab,
    caplog: pytest.LogCaptureFixture,
    how: Provoke,
    kind: type[BaseException],
    message: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    error = await provoke(lab, how)
    assert type(error) is kind
    assert str(error) == expected(lab, message)
    told = [repr(lab.client), caplog.text, *map(str, causes(error))]
    assert not [text for text in told if "s3cret" in text]


def test_no_error_is_left_out() -> None:
    provoked = {case[2] for case in CASES}
    for name in fastq.__all__:
        thing = getattr(fastq, name)
        if isinstance(thing, type) and issubclass(thing, FastqError) and thing is not FastqError:
            assert thing in provoked


def test_each_error_is_one_of_ours_or_of_the_three_of_python() -> None:
    for _, _, kind, _ in CASES:
        ours = FastqError | TypeError | ValueError | TimeoutError | RuntimeError
        assert issubclass(kind, ours)


if __name__ == "__main__":
    for name, _, kind, message in CASES:
        print(f"{name}: {kind.__name__}\n    {message}")
