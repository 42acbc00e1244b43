"""Leases and the queue as values, and the rules about them; no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from services.cache.domain import Key, Lane

# How long one attempt may take: a base, more for every image and chunk of text, and a cap.
ATTEMPT_BASE = timedelta(seconds=60)
ATTEMPT_PER_IMAGE = timedelta(seconds=25)
ATTEMPT_PER_CHUNK = timedelta(seconds=15)
ATTEMPT_CAP = timedelta(seconds=300)

# No provider makes a reader wait longer than this.
RETRY_AFTER_CAP = timedelta(hours=1)


# Leases, jobs and keys are made by the thousand each second: tuples cost a fifth of dataclasses.
class Lease(NamedTuple):
    """A worker's fenced right to one attempt."""

    generation_id: UUID
    attempt: int


@dataclass(frozen=True, kw_only=True)
class KeptLease:
    """A lease that was renewed, and how long its attempt may still take."""

    lease: Lease
    time_left: timedelta


class Loss(StrEnum):
    """What can go wrong with a lease, or with waiting for one."""

    LEASE_EXPIRED = "lease_expired"
    ATTEMPTS_SPENT = "attempts_spent"
    QUEUE_TIMEOUT = "queue_timeout"


@dataclass(frozen=True, kw_only=True)
class DayOfLosses:
    """How often that was on one day (UTC)."""

    day: date
    counts: Mapping[Loss, int]


@dataclass(frozen=True, kw_only=True)
class LaneReport:
    """One lane of the queue at a moment; `expired` ones are among those that wait."""

    lane: Lane
    waiting: int = 0
    leased: int = 0
    retrying: int = 0
    expired: int = 0
    oldest_wait: timedelta | None = None


@dataclass(frozen=True, kw_only=True)
class QueueReport:
    """The queue at a moment."""

    lanes: Sequence[LaneReport]
    refunds_due: int
    taken_at: datetime


class Job(NamedTuple):
    """A leased generation, as its worker needs it."""

    lease: Lease
    key: Key
    images_count: int
    created_at: datetime
    leased_until: datetime
    deadline_at: datetime
    time_left: timedelta
    # The span that started it, as W3C writes it.
    traceparent: str | None = None


class Result(NamedTuple):
    """What a worker has made, as it is kept."""

    content: bytes
    is_document: bool


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an attempt has come; no stage and no chunks leave them as they were."""

    lease: Lease
    stage: str | None = None
    done: int = 0
    total: int = 0
    chunks: int = 0


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why an attempt failed, and whether another may help."""

    lease: Lease
    reason: str
    message: str
    permanent: bool
    retry_after: timedelta = timedelta()


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    LEASE_LOST = "lease_lost"
    RETRYING = "retrying"


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """The separate clocks of SPEC 5.5; the deadline of an attempt is counted from its lease."""

    lease: timedelta
    queue_wait: timedelta
    # How long a job may wait before it goes ahead of newer ones, whatever its lane.
    ageing: timedelta
    # How long a call may take to turn its intent into a waiter before another may go on with it.
    hold: timedelta
    # How old an intent may grow before the sweep gives it up.
    intent: timedelta
    # How long a page that failed for good is not tried again.
    remember_failure: timedelta
    # How long failed and retired generations, and settled requests, are kept.
    retention: timedelta
    max_attempts: int
    backoff: tuple[timedelta, ...]
    jitter: timedelta

    def retry_delay(self, failure: Failure, *, tried: int, spread: float) -> timedelta | None:
        """How long until the next attempt; None when there is none.

        `tried` counts the attempts that were made in earnest; `spread` is 0 to 1.
        """
        if failure.permanent or tried >= self.max_attempts:
            return None
        delay = self.backoff[min(tried, len(self.backoff)) - 1] + self.jitter * spread
        return max(delay, min(failure.retry_after, RETRY_AFTER_CAP))
