"""What a job may know of itself: the `Context` that is passed as its first argument."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from fastq.clock import from_ms

if TYPE_CHECKING:
    from fastq._core import Run
    from fastq.client import Client


@dataclass(slots=True)
class JobScope:
    """What all jobs of a worker share."""

    queue: str
    client: Client
    state: Any


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
        """When the job was enqueued, by the server's clock."""
        return from_ms(int(self._run.id.split(b"-")[0]))

    @property
    def state(self) -> Any:
        """What the worker's `lifespan` yielded; an empty dict without one."""
        return self._scope.state

    @property
    def client(self) -> Client:
        """A producer on the worker's server and queue, for jobs that enqueue jobs."""
        return self._scope.client
