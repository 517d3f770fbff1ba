"""Where settings come from: classes, instances, modules, the environment; and misspelt names."""

import types
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pytest

import fastq
from fastq import ConfigError, Context, Outcome, WorkerSettings
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


# Names that are wrong


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("function", "functions"),
        ("queue", "queues"),
        ("max_job", "max_jobs"),
        ("job_time_out", "job_timeout"),
        ("keep_results", "keep_result"),
        ("lifespam", "lifespan"),
        ("on_job_started", "on_job_start"),
        ("serialiser", "serializer"),
        ("Burst", "burst"),
    ],
)
def test_a_misspelt_name_is_told_with_the_right_one(name: str, right: str) -> None:
    module = types.ModuleType("settings")
    vars(module).update(functions=[add], **{name: 5})
    instance = settings_class()()
    setattr(instance, name, 5)
    wrong: dict[str, list[Any]] = {
        "Worker": [settings_class(**{name: 5}), instance],
        "settings": [module],
    }
    for title, sources in wrong.items():
        for source in sources:
            with pytest.raises(ConfigError) as error:
                Settings.read(source)
            assert str(error.value) == f"{title} has no setting {name!r}. Did you mean {right!r}?"


def test_a_misspelt_hook_of_a_module_is_told() -> None:
    module = types.ModuleType("settings")
    vars(module).update(functions=[add], lifespam=lifespan)
    with pytest.raises(ConfigError, match="Did you mean 'lifespan'"):
        Settings.read(module)


def test_a_helper_of_a_class_starts_with_an_underscore() -> None:
    assert read(_url="x")
    with pytest.raises(ConfigError) as error:
        read(make_url="x")
    assert str(error.value) == (
        "Worker has no setting 'make_url'. A helper's name may start with an underscore."
    )


def test_a_module_may_hold_whatever_is_no_slip() -> None:
    module = types.ModuleType("settings")
    vars(module).update(functions=[add], max_jobs=3, add=add, DEBUG=True, Worker=int, os=fastq)
    assert Settings.read(module).max_jobs == 3


def test_an_override_that_is_no_setting_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="there is no setting 'max_job'"):
        Settings.read(settings_class(), max_job=5)


@pytest.mark.parametrize("source", [None, 5, "module:Name", [add], {"functions": [add]}, add])
def test_what_cannot_be_settings_is_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match="^Settings are a class, an instance of one or a module"):
        Settings.read(source)


# Where values come from


def test_inherited_settings_count() -> None:
    class Mixin:
        max_jobs = 7

    class Base(WorkerSettings):
        functions = (add,)
        keep_result = 5

    class Worker(Mixin, Base):
        queues = ("mail",)

    found = Settings.read(Worker)
    assert (found.max_jobs, found.keep_result_s, found.queue) == (7, 5, "mail")
    with pytest.raises(ConfigError, match="Did you mean 'max_jobs'"):
        Settings.read(type("Worker", (type("Mixin", (), {"max_job": 1}), Base), {}))


def test_a_class_need_not_derive_from_ours() -> None:
    assert Settings.read(type("Plain", (), {"functions": [add], "max_jobs": 3})).max_jobs == 3


def test_an_instance_may_compute_its_settings() -> None:
    class Worker(WorkerSettings):
        functions = (add,)
        __slots__ = ("keep_result",)

        def __init__(self) -> None:
            self.keep_result = 1
            self.queues = ["own"]

        @property
        def max_jobs(self) -> int:  # type: ignore[override]
            return len(self.queues) + 1

        @cached_property
        def redis(self) -> str:  # type: ignore[override]
            return "redis://computed"

    found = Settings.read(Worker())
    assert (found.keep_result_s, found.max_jobs, found.queue) == (1, 2, "own")
    assert found.redis.host == "computed"


def hooks_of(source: Any) -> tuple[Any, ...]:
    found = Settings.read(source)
    return found.lifespan, found.on_job_start, found.on_job_end


def test_functions_in_a_class_body_never_receive_self() -> None:
    expected = (lifespan, on_job_start, on_job_end)
    names: dict[str, Any] = {
        "lifespan": lifespan,
        "on_job_start": on_job_start,
        "on_job_end": on_job_end,
    }
    plain = settings_class(**names)
    static = settings_class(**{name: staticmethod(fn) for name, fn in names.items()})
    instance = settings_class()()
    vars(instance).update(names)
    module = types.ModuleType("settings")
    vars(module).update(functions=[add], **names)
    derived = type("Derived", (plain,), {})
    for source in (plain, plain(), static, static(), instance, module, derived, derived()):
        assert hooks_of(source) == expected


def test_class_methods_and_partials_are_hooks_too() -> None:
    class Worker(WorkerSettings):
        functions = (add,)

        @classmethod
        async def on_job_start(cls, ctx: Context) -> str:  # type: ignore[override]
            return cls.__name__

        on_job_end = partial(on_job_end)

    _, start, end = hooks_of(Worker)
    assert start.__self__ is Worker
    assert end.func is on_job_end


def test_the_environment_is_read_when_the_settings_are(monkeypatch: pytest.MonkeyPatch) -> None:
    source = settings_class()
    monkeypatch.setenv("FASTQ_REDIS_URL", "redis://one/1")
    assert Settings.read(source).redis.address == "redis://one:6379/1"
    monkeypatch.setenv("FASTQ_REDIS_URL", "redis://two/2")
    assert Settings.read(source).redis.address == "redis://two:6379/2"
    assert Settings.read(source, redis="redis://three").redis.host == "three"
    assert read(redis="redis://four").redis.host == "four"
    monkeypatch.setenv("FASTQ_REDIS_URL", "")
    assert Settings.read(source).redis.host == "localhost"


def test_overrides_go_before_what_the_class_says() -> None:
    source = settings_class(max_jobs=5, queues=["a"], burst=False)
    found = Settings.read(source, max_jobs=6, queues=["b"], burst=True)
    assert (found.max_jobs, found.queue, found.burst) == (6, "b", True)
    assert found.source is source
