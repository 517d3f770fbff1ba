"""Which duties a queue's leader has."""

from __future__ import annotations

from fastq.clock import RedisClock
from fastq.crontab import Crontab
from fastq.janitor import Janitor
from fastq.keys import QueueKeys
from fastq.leader import Leader
from fastq.options import keep_ms_of
from fastq.promoter import Promoter
from fastq.settings import Settings


def promoter_of(settings: Settings, keys: QueueKeys) -> Promoter:
    """The promoter of a queue."""
    kept_ms = keep_ms_of(settings.keep_result_s)
    return Promoter(keys, db=settings.redis.db, keep_ms=kept_ms, keep_dead=settings.keep_dead)


def leader_of(settings: Settings, keys: QueueKeys, promoter: Promoter, clock: RedisClock) -> Leader:
    """A leader with all duties."""
    db = settings.redis.db
    duties = (
        promoter,
        Crontab(keys, settings.cron, clock, db=db),
        Janitor(keys, settings.keep_dead),
    )
    return Leader(duties, settings.redis, keys.control(db))
