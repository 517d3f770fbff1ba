"""A RunningSet and a SettleQueue with nothing around them: what they call is noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq._core import Function, Keep, Run, RunningSet, SettleBatch, SettleQueue

STREAM, GROUP, RESULTS = b"{q}:stream", b"fastq", b"{q}:result:"

Entry = list[Any]


def decode(payload: bytes | None) -> tuple[tuple[object, ...], dict[str, object] | None]:
    """`bad` cannot be decoded; all else is the one argument."""
    if payload == b"bad":
        raise ValueError("cannot be decoded")
    return (payload,), None


def function(name: str, keep: Keep | None = None, **options: Any) -> Function:
    # What is spawned is the run itself, in the place of its coroutine.
    options = {"execute": lambda run: run, **options}
    return Function(name, lambda *args: args, decode, keep=keep, **options)


def entry(job_id: int | bytes, name: bytes = b"plain", payload: bytes = b"1", *more: Any) -> Entry:
    return [id_of(job_id), [b"f", name, b"d", payload, *more]]


def id_of(job_id: int | bytes) -> bytes:
    return job_id if isinstance(job_id, bytes) else b"1700000000000-%d" % job_id


class Rig:
    """`spawn` is called for each run that starts, like the real one; refused runs are removed."""

    def __init__(
        self,
        *functions: Function,
        max_jobs: int = 100,
        spawn: Callable[[Run], Any] | None = None,
        refuse: Callable[[Run, Exception], Any] | None = None,
        configure: Callable[[Run], Any] | None = None,
    ) -> None:
        known = functions or (function("plain"), function("kept", Keep(60_000)))
        self.started: list[Run] = []
        self.refused: list[tuple[bytes, Exception]] = []
        self.wakes = 0
        self.answers: list[tuple[SettleBatch, Any]] = []
        self._spawn = spawn or (lambda run: ("task of", run.id))
        self._refuse = refuse or (lambda run, error: None)
        self.running = RunningSet(
            max_jobs,
            {function.name.encode(): function for function in known},
            spawn=self.spawn,
            refuse=self.refuse,
            configure=configure or (lambda run: None),
        )
        self.recorded: list[tuple[bytes, bytes | None]] = []
        self.settles = SettleQueue(
            self.running,
            *(STREAM, GROUP, RESULTS),
            wake=self.wake,
            done=self.answered,
            own=lambda run, envelope: self.recorded.append((run.id, envelope)),
        )

    def start(self, *entries: Entry) -> list[bytes]:
        """Starts all, with as many turns as that takes."""
        deleted = self.running.start(list(entries))
        while self.running.start_waiting():
            pass
        return deleted

    @property
    def begun(self) -> list[bytes]:
        return [run.id for run in self.started]

    @property
    def errors(self) -> dict[bytes, type[Exception]]:
        """Of the refused."""
        return {job_id: type(error) for job_id, error in self.refused}

    def run(self, job_id: int | bytes) -> Run:
        """The run of this id that is going on."""
        (run,) = [run for run in self.running if run.id == id_of(job_id)]
        return run

    def spawn(self, run: Run, *, name: str) -> Any:
        assert name == run.function.name
        self.started.append(run)
        return self._spawn(run)

    def refuse(self, run: Run, error: Exception) -> None:
        self.refused.append((run.id, error))
        self._refuse(run, error)
        self.running.remove(run)

    def wake(self) -> None:
        self.wakes += 1

    def answered(self, batch: SettleBatch, reply: Any) -> None:
        self.answers.append((batch, reply))

    def take(self) -> SettleBatch:
        batch = self.settles.take()
        assert batch is not None
        return batch
