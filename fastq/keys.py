"""Names of the Redis keys. Nothing else builds a key.

All keys of a queue share the hash tag `{fastq:NAME}`, so they live in one cluster slot.
"""

from __future__ import annotations

from fastq.errors import ConfigError

GROUP = b"fastq"
QUEUES = b"fastq:queues"
# Consumers that no process stands behind: entries there wait to be taken.
RELEASED = b"released"


def check_queue_name(name: object) -> str:
    """The name itself if a queue may be called so, else `ConfigError`."""
    if not isinstance(name, str) or not name:
        raise ConfigError(f"A queue name must be a non-empty string, not {name!r}.")
    if any(c in "{}" or not c.isprintable() for c in name):
        raise ConfigError(
            f"The queue name {name!r} has braces or control characters: "
            "braces would move it to another cluster slot. Choose another name."
        )
    return name


class QueueKeys:
    """The keys of one queue, as bytes."""

    __slots__ = (
        "_control",
        "beats",
        "consumer_prefix",
        "cron",
        "dead",
        "deferred",
        "leader",
        "meta",
        "name",
        "none",
        "record_prefix",
        "result_prefix",
        "stream",
    )

    def __init__(self, name: str) -> None:
        self.name = check_queue_name(name)
        base = b"{fastq:" + name.encode() + b"}:"
        self.stream = base + b"stream"
        self.result_prefix = base + b"result:"
        self.deferred = base + b"deferred"
        self.record_prefix = base + b"job:"
        self.dead = base + b"dead"
        self.meta = base + b"meta"
        self.cron = base + b"cron"
        self.leader = base + b"leader"
        self.beats = base + b"beats"
        self.consumer_prefix = base + b"consumer:"
        # Never exists: scripts DEL it to begin with a write that a full server accepts.
        self.none = base + b"none"
        self._control = base + b"control:"

    def result(self, job_id: str) -> bytes:
        """Where the outcome of a job is kept."""
        return self.result_prefix + job_id.encode()

    def record(self, job_id: str) -> bytes:
        """Where it is noted where a job is: one with an id of its own, deferred or retried."""
        return self.record_prefix + job_id.encode()

    def control(self, db: int) -> bytes:
        """The pub/sub channel of the queue. Channels, unlike keys, are shared by all databases."""
        return self._control + b"%d" % db
