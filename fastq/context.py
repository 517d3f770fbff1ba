"""What a job may know of itself: the `Context` that is passed as its first argument."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fastq.clock import from_ms

if TYPE_CHECKING:
    from fastq._core import Run
    from fastq.client import Client


class Running(NamedTuple):
    """The run that code belongs to, as the server knows it. Only of jobs with a record."""

    queue: str
    job_id: str
    entry: bytes
    consumer: str


_RUNNING: ContextVar[Running | None] = ContextVar("fastq_running", default=None)
enter = _RUNNING.set


def running_entry(queue: str, job_id: str) -> tuple[bytes, str]:
    """Entry and consumer of the run of this very job that asks, or ("", "") if none does."""
    running = _RUNNING.get()
    if running is None or (running.queue, running.job_id) != (queue, job_id):
        return b"", ""
    return running.entry, running.consumer


@dataclass(slots=True)
class JobScope:
    """What all jobs of a worker share."""

    queue: str
    client: Client
    state: Any
    consumer: str = ""


class Context:
    """A running job's view of itself.

    Passed to functions whose first parameter is annotated `Context`, or is a bare `ctx`.
    """

    __slots__ = ("_run", "_scope")

    def __init__(self, scope: JobScope, run: Run) -> None:
        self._scope = scope
        self._run = run

    def __repr__(self) -> str:
        return f"<Context of {self.function} {self.job_id} in queue {self.queue!r}>"

    @property
    def job_id(self) -> str:
        """The job's id, unique within its queue."""
        return self._run.id.decode()

    @property
    def function(self) -> str:
        """The name under which the function is registered."""
        return self._run.function.name

    @property
    def queue(self) -> str:
        """The queue that the job came from."""
        return self._scope.queue

    @property
    def tries(self) -> int:
        """Which run of the job this is, the first one being 1."""
        return self._run.tries

    @property
    def enqueued_at(self) -> datetime:
        """When the job was enqueued, by the server's clock: the first time, if it is retried."""
        return from_ms(enqueued_ms(self._run))

    @property
    def state(self) -> Any:
        """What the worker's `lifespan` yielded; an empty dict without one."""
        return self._scope.state

    @property
    def client(self) -> Client:
        """A producer on the worker's server and queue, for jobs that enqueue jobs."""
        return self._scope.client


def enqueued_ms(run: Run) -> int:
    """When a job was enqueued first, in ms of the server: what it carries, or its entry's id."""
    field = run.enqueued_field
    if field is not None and field.isdigit() and len(field) < 16:
        return int(field)
    return int(run.entry.partition(b"-")[0])
