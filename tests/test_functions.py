"""Which functions may be jobs, and what they are called."""

import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import fastq
from fastq import ConfigError, Context
from fastq.functions import UNSET, collect, describe


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


def sync(x: int) -> int:
    return x


async def agenerator() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


class Callables:
    async def method(self, x: int) -> int:
        return x

    @staticmethod
    async def static(x: int) -> int:
        return x

    @classmethod
    async def of_class(cls, x: int) -> int:
        return x

    async def __call__(self, ctx: Context, x: int) -> int:
        return x


def other_add() -> Callable[..., Any]:
    async def add(x: int) -> int:
        return x

    return add


lambda_: Any = lambda x: x  # noqa: E731
objected = fastq.job(Callables(), name="object")


def test_functions_are_known_by_their_names() -> None:
    found = collect(
        [add, sync, Callables().method, Callables.static, Callables.of_class, objected, len]
    )
    assert list(found) == ["add", "sync", "method", "static", "of_class", "object", "len"]
    asynchronous = [name for name, info in found.items() if info.is_async]
    assert asynchronous == ["add", "method", "static", "of_class", "object"]
    assert [name for name, info in found.items() if info.takes_context] == ["add", "object"]


def test_import_strings_name_functions() -> None:
    found = collect(
        ["test_functions:add", "test_functions.sync", "test_functions:Callables.static"]
    )
    assert list(found) == ["add", "sync", "static"]


def test_a_function_named_twice_is_one() -> None:
    assert list(collect([add, add, "test_functions:add"])) == ["add"]


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        (
            [add, other_add()],
            "functions: two are called 'add': test_functions.add and"
            " test_functions.other_add.<locals>.add. Give one of them another name:"
            " @job(name=…).",
        ),
        (
            [add, fastq.job(sync, name="add")],
            "functions: two are called 'add': test_functions.add and test_functions.sync."
            " Give one of them another name: @job(name=…).",
        ),
        ([generator], "generator is a generator: a job function returns its result."),
        ([agenerator], "agenerator is a generator: a job function returns its result."),
        ([lambda_], "{0!r} has no name of its own: use job(fn, name=…)."),
        ([functools.partial(sync, 1)], "{0!r} has no name of its own: use job(fn, name=…)."),
        ([Callables()], "{0!r} has no name of its own: use job(fn, name=…)."),
        ([5], "functions: 5 is not a function or an import string."),
        ([None], "functions: None is not a function or an import string."),
        (
            ["nowhere:add"],
            "functions: 'nowhere:add' cannot be imported: No module named 'nowhere'.",
        ),
        (
            ["test_functions:nothing"],
            "functions: 'test_functions:nothing' cannot be imported: module 'test_functions' has"
            " no attribute 'nothing'.",
        ),
        (["test_functions:__name__"], "functions: 'test_functions' is not a function or an import"
         " string."),
        (["add"], "functions: 'add' cannot be imported: name it as module:name."),
        ([""], "functions: '' cannot be imported: name it as module:name."),
        ([":add"], "functions: ':add' cannot be imported: name it as module:name."),
        (["test_functions:"], "functions: 'test_functions:' cannot be imported: name it as"
         " module:name."),
    ],
)  # fmt: skip
def test_what_cannot_be_a_job_is_named(functions: list[Any], message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        collect(functions)
    assert str(wrong.value) == message.format(*functions)


def test_an_import_string_whose_module_raises_is_told(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "raising_functions.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'raising_functions:f' cannot be imported: .*division"):
        collect(["raising_functions:f"])


def test_a_lambda_with_a_name_may_be_a_job() -> None:
    assert list(collect([fastq.job(lambda_, name="same")])) == ["same"]


def test_somebody_elses_function_stays_as_it_is() -> None:
    wrapped = fastq.job(sync, name="wrapped", timeout=5, keep_result=None)
    assert describe(wrapped).call is sync
    assert describe(sync).name == "sync"
    assert describe(sync).options.timeout_s is UNSET
    assert wrapped(3) == 3


def test_options_of_the_decorator_are_attached() -> None:
    options = describe(fastq.job(name="x", timeout=None, keep_result=0)(other_add())).options
    assert (options.name, options.timeout_s, options.keep_result_s) == ("x", None, 0)
    bare = fastq.job(other_add())
    assert describe(bare).options.keep_result_s is UNSET


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout must be {}, or None for no limit, not 0."),
        ({"timeout": "5"}, "timeout must be {}, or None for no limit, not '5'."),
        (
            {"keep_result": -1},
            "keep_result must be {}, 0 for not at all, or None for ever, not -1.",
        ),
        ({"name": ""}, "A function's name must be a non-empty string, not ''."),
        ({"name": 5}, "A function's name must be a non-empty string, not 5."),
        ({"name": "a\nb"}, "A function's name must be a non-empty string, not 'a\\nb'."),
    ],
)
def test_wrong_options_of_the_decorator_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        fastq.job(**options)
    assert str(wrong.value) == message.format("a positive number of seconds or a timedelta")


def test_what_takes_no_options_is_told() -> None:
    with pytest.raises(ConfigError, match=r"takes no attributes; use job\(fn, name=…\) on it\.$"):
        fastq.job(len)
    with pytest.raises(ConfigError, match=re.escape("job() takes a function, not 'mail'; options")):
        fastq.job("mail")  # type: ignore[call-overload]


def test_a_ctx_of_another_type_is_told() -> None:
    async def odd(ctx: int) -> None: ...

    with pytest.raises(ConfigError) as wrong:
        collect([odd])
    assert str(wrong.value) == (
        "odd(): its parameter ctx is annotated int; annotate it fastq.Context or not at all, or"
        " give it another name if it is an argument"
    )
