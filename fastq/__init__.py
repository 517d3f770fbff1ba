"""fastq: a job queue for asyncio Python on Redis and Valkey Streams.

`import fastq` loads what producers and settings need, no worker.
"""

from importlib.metadata import version as _version

from fastq.client import Client
from fastq.context import Context
from fastq.errors import (
    ConfigError,
    EnqueueError,
    EnqueueUncertain,
    FastqError,
    JobFailed,
    JobTimeout,
    PayloadTooLarge,
    ResultNotFound,
    SerializationError,
    ServerUnavailable,
)
from fastq.functions import Call, call, job
from fastq.jobs import Job
from fastq.outcome import Outcome
from fastq.producer import Producer
from fastq.redis_settings import RedisSettings
from fastq.settings import WorkerSettings

__version__ = _version("fastq-worker")

__all__ = [
    "Call",
    "Client",
    "ConfigError",
    "Context",
    "EnqueueError",
    "EnqueueUncertain",
    "FastqError",
    "Job",
    "JobFailed",
    "JobTimeout",
    "Outcome",
    "PayloadTooLarge",
    "Producer",
    "RedisSettings",
    "ResultNotFound",
    "SerializationError",
    "ServerUnavailable",
    "WorkerSettings",
    "call",
    "job",
]
