"""The side of a producer that enqueues: one job, or many, with or without options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import orjson

from fastq._core import XaddTemplate
from fastq.bulk import Bulk
from fastq.context import Context
from fastq.errors import PayloadTooLarge
from fastq.functions import Call, check_function_name, describe
from fastq.jobs import Job
from fastq.keys import QueueKeys
from fastq.parameters import misfit

if TYPE_CHECKING:
    from fastq.client import Client

P = ParamSpec("P")
R = TypeVar("R")
# Names come from callers: a producer that makes them up must not fill the memory.
_MAX_TEMPLATES = 1_000


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """Options that travel in the job's entry. Unset ones are the function's or the worker's."""

    timeout_s: float | None = None
    no_timeout: bool = False
    keep_ms: int | None = None

    def fields(self) -> tuple[bytes, ...]:
        """The entry's further fields and values."""
        fields: tuple[bytes, ...] = ()
        if self.keep_ms is not None:
            fields += (b"k", b"%d" % self.keep_ms)
        if self.timeout_s is not None or self.no_timeout:
            fields += (b"o", orjson.dumps({"timeout": self.timeout_s}))
        return fields


class Producer:
    """Enqueues jobs to one queue with the same options for each.

    Made by `Client.options`; a `Client` is itself one, without options.
    """

    def __init__(self, client: Client, keys: QueueKeys, options: EntryOptions) -> None:
        self._client = client
        self._keys = keys
        self._fields = options.fields()
        self._templates: dict[str, XaddTemplate] = {}

    @property
    def queue(self) -> str:
        """The queue that jobs go to."""
        return self._keys.name

    @overload
    async def enqueue(
        self,
        fn: Callable[Concatenate[Context, P], Awaitable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self, fn: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]: ...
    @overload
    async def enqueue(
        self, fn: Callable[Concatenate[Context, P], R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]: ...
    @overload
    async def enqueue(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Job[R]: ...
    @overload
    async def enqueue(self, fn: str, /, *args: Any, **kwargs: Any) -> Job[Any]: ...
    async def enqueue(self, fn: Any, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Puts a job into the queue: a function, or the name of one, with its arguments.

        Once this returns, the job runs at least once. `TypeError` if the arguments do not fit the
        function, `SerializationError` if one cannot be carried, `PayloadTooLarge`, `EnqueueError`
        if Redis is away or refuses (nothing was enqueued), `EnqueueUncertain` if the connection
        broke before the reply. A call that is cancelled may have enqueued the job.
        """
        packed = self._pack(fn, args, kwargs)
        job_id = await self._client._submit(self._keys, packed)
        return Job(self._client, self._keys, job_id.decode(), fn)

    @overload
    async def enqueue_many(
        self, calls: Iterable[Call[R]], *, handles: Literal[True] = True
    ) -> list[Job[R]]: ...
    @overload
    async def enqueue_many(self, calls: Iterable[Call[Any]], *, handles: Literal[False]) -> int: ...
    @overload
    async def enqueue_many(
        self, calls: Iterable[Call[R]], *, handles: bool
    ) -> list[Job[R]] | int: ...
    async def enqueue_many(
        self, calls: Iterable[Call[Any]], *, handles: bool = True
    ) -> list[Job[Any]] | int:
        """Puts many jobs into the queue, in order: `enqueue_many(call(add, i, i) for i in …)`.

        Takes any iterable and holds no more than a few batches of it at a time. With
        `handles=False` it returns the count, and memory stays bounded for any number. The errors
        are those of `enqueue`; each names the call it stopped at and how many were enqueued.
        """
        bulk = Bulk(self._client, self._keys, self._pack_call, handles=handles)
        await bulk.run(calls)
        return bulk.jobs if handles else bulk.enqueued

    def _pack_call(self, call: Call[Any]) -> bytes:
        if type(call) is not Call:
            raise TypeError(f"enqueue_many takes fastq.call(function, …), not {call!r}")
        return self._pack(call.fn, call.args, call.kwargs)

    def _pack(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The XADD of a job."""
        client = self._client
        if isinstance(fn, str):
            name, parameters = fn, None
        else:
            info = describe(fn)
            if problem := misfit(info.shape, len(args), kwargs):
                raise TypeError(problem)
            name, parameters = info.name, info.shape.positional
        payload = client._codec.dump_call(args, kwargs, parameters)
        if len(payload) > client._max_payload:
            raise PayloadTooLarge(
                f"The arguments of {name} take {len(payload)} bytes, more than max_payload "
                f"({client._max_payload}). Store the data elsewhere and pass where it is."
            )
        template = self._templates.get(name) or self._template(name)
        return template.pack(payload)

    def _template(self, name: str) -> XaddTemplate:
        check_function_name(name)
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        template = XaddTemplate(self._keys.stream, name.encode(), self._fields)
        self._templates[name] = template
        return template
