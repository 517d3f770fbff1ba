"""`Job`: the handle of a job, to ask how it stands and to wait for its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import formatannotation
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from fastq.clock import seconds
from fastq.conversion import converter
from fastq.decoders import result_decoder
from fastq.durations import Duration
from fastq.errors import (
    ConfigError,
    JobExpired,
    JobFailed,
    JobTimeout,
    SerializationError,
    sentence,
)
from fastq.functions import describe
from fastq.outcome import Envelope

if TYPE_CHECKING:
    from fastq.client import Client
    from fastq.keys import QueueKeys

T_co = TypeVar("T_co", covariant=True)
_ADVICE = {
    "failed": "The worker's traceback is in .traceback. ",
    "retries": "It ran as often as max_tries lets it. ",
    "timeout": "Give it longer with timeout=…, or let it do less. ",
    "expired": "Give it longer with expires=…, or run more workers. ",
    "arguments": "Give the producer and the worker the same version of the function. ",
    "undecodable": "Give the producer and the worker the same serializer. ",
}
JobStatus = Literal["deferred", "queued", "running", "complete", "failed", "expired", "not_found"]
_KINDS = {"timeout": JobTimeout, "expired": JobExpired}


class Job(Generic[T_co]):
    """A job in a queue. Its id is unique within the queue only.

    Handles are cheap and may be thrown away; the job does not depend on them.
    """

    __slots__ = ("_client", "_keys", "_returns", "existing", "id")

    def __init__(self, client: Client, keys: QueueKeys, job_id: str, returns: Any = None) -> None:
        self.id = job_id
        self.existing = False
        self._client = client
        self._keys = keys
        self._returns = returns

    def __repr__(self) -> str:
        return f"<Job {self.id} in queue {self.queue!r}>"

    @property
    def queue(self) -> str:
        """The queue that the job is in."""
        return self._keys.name

    async def status(self) -> JobStatus:
        """Where the job is now. A retry that waits is `deferred`.

        `not_found` if it never was there, or if its result was not kept or has expired.
        `ServerUnavailable` if Redis cannot be asked.
        """
        return cast(JobStatus, await self._client._status(self._keys, self.id))

    async def result(self, timeout: Duration | None = None) -> T_co:
        """Waits for the job's end and returns what it returned.

        `timeout` in seconds, None waits for ever; `TimeoutError` means that the job still waits or
        runs, or that Redis is away. `JobFailed` (`JobTimeout`, `JobExpired`) if it ended badly,
        `ResultNotFound` if there is no such job or its result is not there any more. Cancelling the
        wait leaves the job alone.
        """
        limit_s = None if timeout is None else seconds(timeout)
        try:
            async with asyncio.timeout(limit_s):
                data = await self._client._outcome(self._keys, self.id)
        except TimeoutError:
            raise TimeoutError(
                f"{self!r} has no result after {limit_s:g} s: {self._why_none()} "
                "Ask again, or give a longer timeout."
            ) from None
        return self._read(self._unpack(data))

    def _why_none(self) -> str:
        trouble = self._client._results.trouble
        return f"Redis cannot be reached ({trouble})." if trouble else "it still waits or runs."

    def _unpack(self, data: bytes) -> Envelope:
        try:
            return Envelope.unpack(data)
        except ValueError as error:
            raise SerializationError(
                f"What is stored as the result of {self!r} was not written by fastq, or by one "
                f"that is too new: {error}"
            ) from error

    def _read(self, envelope: Envelope) -> T_co:
        if envelope.status != "complete":
            raise self._failure(envelope)
        return cast(T_co, self._decoder()(envelope.body))

    def _failure(self, envelope: Envelope) -> JobFailed:
        error = envelope.error
        kind = _KINDS.get(envelope.reason, JobFailed)
        what = f"{error.type}: {error.message}" if error.message else error.type
        advice = _ADVICE.get(envelope.reason, "")
        return kind(
            f"{self!r} ended badly ({envelope.reason}): {sentence(what)} {advice}"
            "It is kept in the queue's dead jobs.",
            reason=envelope.reason,
            type=error.type,
            message=error.message,
            traceback=error.traceback,
            tries=envelope.tries,
        )

    def _decoder(self) -> Callable[[bytes], object]:
        codec = self._client._codec
        returns = self._returns
        if returns is None or isinstance(returns, str) or not codec.converts:
            return codec.load_value
        if isinstance(returns, Returns):
            return returns.decode
        return result_decoder(describe(returns).call, codec)


class Returns:
    """The type of a result, where no function object tells it: `Client.job(…, returns=T)`."""

    __slots__ = ("decode",)

    def __init__(self, returns: Any) -> None:
        convert = converter(returns)
        if convert is None:
            raise ConfigError(f"returns={returns!r}: results cannot be converted to this type.")

        def decode(data: bytes) -> object:
            try:
                return convert(data)
            except ValueError as error:
                raise SerializationError(
                    f"The result is not the {formatannotation(returns)} that returns= asks for: "
                    f"{error}"
                ) from error

        self.decode: Callable[[bytes], object] = decode
