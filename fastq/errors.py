"""The errors that fastq raises.

Everything derives from `FastqError`, but for three of Python's own: wrong arguments of a function
object raise `TypeError`, a naive datetime `ValueError`, and `Job.result(timeout=…)` `TimeoutError`,
which always means: still waiting.
"""

from __future__ import annotations


class FastqError(Exception):
    """Base of all errors of fastq."""


class ConfigError(FastqError):
    """A setting, a URL or a name is wrong. Raised before any job is touched."""


class SerializationError(FastqError):
    """A value cannot be carried by the serializer, or would change on the way."""


class PayloadTooLarge(FastqError):
    """The serialised arguments are larger than `max_payload`. Nothing was sent."""


class EnqueueError(FastqError):
    """The job was not enqueued: Redis is away or refused it. It is safe to try again.

    `enqueued` counts the jobs of an `enqueue_many` that are in the queue, all of them before the
    one named in the message; it is 0 for a single job.
    """

    def __init__(self, message: str, *, enqueued: int = 0) -> None:
        super().__init__(message)
        self.enqueued = enqueued


class EnqueueUncertain(FastqError):
    """The connection broke before the reply came: the job may have been enqueued, or not.

    Trying again may run the job twice. `enqueued` counts the jobs of an `enqueue_many` that surely
    are in the queue.
    """

    def __init__(self, message: str, *, enqueued: int = 0) -> None:
        super().__init__(message)
        self.enqueued = enqueued


class ResultNotFound(FastqError):
    """There is no such job, or its result was not kept or has expired."""


class JobFailed(FastqError):
    """The job ended badly.

    `reason` is one of `failed` (it raised), `retries` (it ran `max_tries` times), `rejected`,
    `timeout`, `expired`, `arguments`, `unknown_function`, `undecodable`; `type`, `message` and
    `traceback` are the texts of the exception in the worker (never unpickled); `tries` counts the
    job's runs.
    """

    def __init__(
        self,
        text: str,
        *,
        reason: str = "failed",
        type: str = "",
        message: str = "",
        traceback: str = "",
        tries: int = 1,
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.type = type
        self.message = message
        self.traceback = traceback
        self.tries = tries


class JobTimeout(JobFailed):
    """The job ran into its time limit."""


class JobExpired(JobFailed):
    """The job was not started before it expired."""


class RedisAway(FastqError):
    """A burst could not start: Redis is away."""


class ServerUnavailable(FastqError):
    """Redis is away, or refuses, and the question could not be answered. Ask again later."""


def sentence(text: object) -> str:
    """Somebody else's text as a sentence that another may follow."""
    words = str(text).rstrip()
    return words if words.endswith((".", "!", "?")) else f"{words}."
