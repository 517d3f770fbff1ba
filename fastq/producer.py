"""The side of a producer that enqueues: one job, or many, with or without options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from secrets import token_bytes, token_urlsafe
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, overload

from fastq._core import XaddTemplate
from fastq.bulk import Bulk
from fastq.context import Context, running_entry
from fastq.durations import Unset
from fastq.errors import PayloadTooLarge
from fastq.functions import Call, check_function_name, describe
from fastq.jobs import Job
from fastq.keys import GROUP, QueueKeys
from fastq.options import EnqueueOptions
from fastq.parameters import misfit
from fastq.scripts import ENQUEUE, Part

if TYPE_CHECKING:
    from fastq.client import Client

P = ParamSpec("P")
R = TypeVar("R")
# Names come from callers: a producer that makes them up must not fill the memory.
_MAX_TEMPLATES = 1_000
_ONCE = b"1"
_NO_OPTIONS = EnqueueOptions()


class Recorded:
    """A job that is enqueued by a script, which may be sent again: its nonce tells them apart.

    A plain job is an XADD instead, sent once, since a second one would be a second job.
    """

    __slots__ = ("_args", "_keys", "job_id")

    def __init__(self, job_id: str, keys: tuple[bytes, ...], args: list[Part]) -> None:
        self.job_id = job_id
        self._keys = keys
        self._args = args

    def pack(self, *, whole: bool = False) -> bytes:
        """As RESP; `whole` for a server that does not have the script yet."""
        return ENQUEUE.pack(self._keys, self._args, whole=whole)

    def handle(self, client: Client, keys: QueueKeys, fn: Any, existing: int) -> Job[Any]:
        """The handle of the job, by the script's reply."""
        job: Job[Any] = Job(client, keys, self.job_id, fn)
        job.existing = bool(existing)
        return job


class Producer:
    """Enqueues jobs to one queue with the same options for each.

    Made by `Client.options`; a `Client` is itself one, without options.
    """

    def __init__(self, client: Client, keys: QueueKeys, options: EnqueueOptions) -> None:
        self._client = client
        self._keys = keys
        self._options = options
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

        With a `job_id` that waits or runs already it returns that job, whose `existing` is True.
        Jobs that have an id, a time or an expiry are sent again after a lost connection.
        """
        packed = self._pack(fn, args, kwargs)
        if isinstance(packed, bytes):
            job_id = await self._client._submit(self._keys, packed)
            return Job(self._client, self._keys, job_id.decode(), fn)
        existing = await self._client._submit_recorded(self._keys, packed)
        return packed.handle(self._client, self._keys, fn, existing)

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

    def _pack_call(self, call: Call[Any]) -> bytes | Recorded:
        if type(call) is not Call:
            raise TypeError(f"enqueue_many takes fastq.call(function, …), not {call!r}")
        options = call._options
        if options is not None and self._options != _NO_OPTIONS:
            options = options.over(self._options)
        return self._pack(call.fn, call.args, call.kwargs, options)

    def _pack(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: EnqueueOptions | None = None,
    ) -> bytes | Recorded:
        """A job as it is sent."""
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
        if (options or self._options).recorded:
            check_function_name(name)
            return self._record(name, payload, options or self._options)
        if options is not None:
            check_function_name(name)
            return XaddTemplate(self._keys.stream, name.encode(), options.fields()).pack(payload)
        template = self._templates.get(name) or self._template(name)
        return template.pack(payload)

    def _record(self, name: str, payload: bytes, options: EnqueueOptions) -> Recorded:
        keys, job_id = self._keys, options.job_id
        if isinstance(job_id, Unset):
            # Nobody else has this id, so it tells its own enqueueing.
            job_id, nonce = token_urlsafe(16), _ONCE
        else:
            nonce = token_bytes(12)
        entry, consumer = running_entry(keys.name, job_id)
        times = map(_or_none, (options.defer_by_ms, options.defer_until_ms, options.expires_ms))
        channel = keys.control(self._client._settings.db)
        args: list[Part] = [job_id, nonce, *times, channel, GROUP, entry, consumer]
        args += (b"f", name, b"d", payload, *options.fields())
        return Recorded(
            job_id,
            (keys.stream, keys.deferred, keys.record(job_id), keys.result(job_id)),
            args,
        )

    def _template(self, name: str) -> XaddTemplate:
        check_function_name(name)
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        template = XaddTemplate(self._keys.stream, name.encode(), self._fields)
        self._templates[name] = template
        return template


def _or_none(ms: int | Unset) -> Part:
    return b"" if isinstance(ms, Unset) else ms
