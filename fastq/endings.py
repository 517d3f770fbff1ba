"""How the runs of jobs end: what is decided, told to the server, and logged."""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import replace
from typing import Protocol, cast

import msgspec

from fastq._core import Run
from fastq.clock import RedisClock
from fastq.decoders import UndecodableError
from fastq.entries import Part, dead_fields, early_tries, keep_ms, options_of, retry_fields
from fastq.functions import FunctionInfo
from fastq.outcome import (
    NAMELESS,
    NO_RUN,
    UNKNOWN,
    Action,
    Ending,
    Envelope,
    ErrorText,
    Outcome,
    Policy,
    Status,
    Verdict,
    decide,
)
from fastq.retries import delay_s
from fastq.settings import Settings

log = logging.getLogger("fastq.executor")


class Settles(Protocol):
    """What is needed of the settler."""

    def touch(self) -> None: ...
    def bury(
        self, run: Run, keep_ms: int, envelope: bytes, fields: tuple[Part, ...], /
    ) -> None: ...
    def retry(self, run: Run, delay_ms: int, fields: tuple[Part, ...], /) -> None: ...


class Endings:
    """Ends runs, but for successes, which are the core's.

    1. Asks `decide` what follows, by the policy of the job's function and the job's own options.
    2. Has the settler say it: the job is dead, or runs again.
    3. Logs it.
    """

    def __init__(self, settings: Settings, queue: str, clock: RedisClock) -> None:
        self._queue = queue
        self._clock = clock
        self._settles: Settles
        self._policy = settings.policy
        self._policies = {n.encode(): self._policy_for(i) for n, i in settings.functions.items()}
        # Jobs that this process has let run again; noted in a burst only, which ends with them.
        self.retried: set[bytes] = set()
        self._burst = settings.burst
        self.failed = 0

    def attach(self, settles: Settles) -> None:
        """Where ends are told."""
        self._settles = settles

    def _policy_for(self, info: FunctionInfo) -> Policy:
        options, policy = info.options, self._policy
        return Policy(
            options.max_tries or policy.max_tries,
            policy.retry_on if options.retry_on is None else options.retry_on,
            options.backoff or policy.backoff,
        )

    def outcome(self, run: Run, ending: Ending, error: BaseException) -> Outcome:
        """How a run that ended so is told to `on_job_end`."""
        verdict = self._decide(run, ending, error)
        return Outcome(verdict.status, verdict.reason, error=error)

    def end(self, run: Run, ending: Ending, error: BaseException) -> None:
        """Ends a run: `error` is what it ended with."""
        verdict = self._decide(run, ending, error)
        text = ErrorText.of(error)
        if verdict.action is Action.RETRY:
            self._retry(run, ending, verdict.defer_s, text)
            return
        tries = run.tries - 1 if ending in NO_RUN else run.tries
        offset_ms, now_ms = self._clock.offset_ms, self._clock.now_ms()
        started_ms = int(run.started_s * 1000 + offset_ms) if run.started_s else now_ms
        body = msgspec.json.encode(text)
        envelope = Envelope(
            cast(Status, verdict.status), verdict.reason, started_ms, now_ms, tries, body
        )
        self.failed += 1
        self._settles.bury(
            run, keep_ms(run.keep), envelope.pack(), dead_fields(run, tries, verdict.reason, body)
        )
        # The end of a job must not hang on a log handler: some raise, on a RecursionError all do.
        with contextlib.suppress(Exception):
            self._tell(run, verdict.reason, text, error if ending is Ending.RAISED else None)

    def _retry(self, run: Run, ending: Ending, defer_s: float | None, text: ErrorText) -> None:
        early = early_tries(run) + 1 if ending is Ending.UNKNOWN_FUNCTION else 0
        if defer_s is None:
            policy = UNKNOWN if early else self._policy_of(run)
            defer_s = delay_s(policy.backoff, early or run.tries)
        self._settles.retry(run, math.ceil(defer_s * 1000), retry_fields(run, early=early))
        if self._burst:
            self.retried.add(run.id)
        what = "nobody here could start it" if early else f"this was run {run.tries}"
        with contextlib.suppress(Exception):
            log.info(
                "%s %s in queue %r runs again in %.3g s, %s: %s: %s",
                *(*self._names(run), defer_s, what, text.type, text.message),
            )

    def _names(self, run: Run) -> tuple[str, str, str]:
        name = (run.name or b"?").decode(errors="replace")
        return name, run.id.decode(errors="replace"), self._queue

    def _tell(self, run: Run, reason: str, text: ErrorText, error: BaseException | None) -> None:
        why = f"; {text.type} is not in retry_on" if reason == "failed" else ""
        name, job_id, queue = self._names(run)
        log.warning(
            "%s %s in queue %r ended badly (%s): %s: %s%s; in dead as %s",
            *(name, job_id, queue, reason, text.type, text.message, why, job_id),
            exc_info=error,
        )

    def _decide(self, run: Run, ending: Ending, error: BaseException) -> Verdict:
        if ending is Ending.UNKNOWN_FUNCTION:
            return decide(ending, error, early_tries(run) + 1, UNKNOWN if run.name else NAMELESS)
        return decide(ending, error, run.tries, self._policy_of(run))

    def _policy_of(self, run: Run) -> Policy:
        policy = self._policies.get(run.name or b"", self._policy)
        try:
            max_tries = options_of(run).max_tries
        except UndecodableError:
            return policy
        return replace(policy, max_tries=max_tries) if max_tries else policy
