"""fastq: a job queue for asyncio Python on Redis and Valkey Streams.

`import fastq` loads what producers and settings need, no worker.
"""

from importlib.metadata import version as _version

from fastq.client import Client
from fastq.context import Context
from fastq.cron import CronJob, cron
from fastq.errors import (
    ConfigError,
    EnqueueError,
    EnqueueUncertain,
    FastqError,
    JobExpired,
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
from fastq.retries import Reject, Retry, exponential
from fastq.settings import WorkerSettings

__version__ = _version("fastq-worker")

__all__ = [
    "Call",
    "Client",
    "ConfigError",
    "Context",
    "CronJob",
    "EnqueueError",
    "EnqueueUncertain",
    "FastqError",
    "Job",
    "JobExpired",
    "JobFailed",
    "JobTimeout",
    "Outcome",
    "PayloadTooLarge",
    "Producer",
    "RedisSettings",
    "Reject",
    "ResultNotFound",
    "Retry",
    "SerializationError",
    "ServerUnavailable",
    "WorkerSettings",
    "call",
    "cron",
    "exponential",
    "job",
]
