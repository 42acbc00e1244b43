"""Generations, requests and leases as values, and the rules about them; no I/O."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from services.runtime.errors import AlreadyExists, Conflict, DependencyDown, NotFound

LOCALES = ("en", "zh-Hans")
PAGE_EXPLANATION = "page_explanation"
SHARED_SCOPE = "shared"

# How long one attempt may take: a base (with one chunk of text), more for every image, and a cap.
ATTEMPT_BASE = timedelta(seconds=60 + 15)
ATTEMPT_PER_IMAGE = timedelta(seconds=25)
ATTEMPT_CAP = timedelta(seconds=300)

# No provider makes a reader wait longer than this.
RETRY_AFTER_CAP = timedelta(hours=1)


class Status(StrEnum):
    GENERATING = "generating"
    READY = "ready"
    FAILED = "failed"


class Outcome(StrEnum):
    GENERATED = "generated"
    JOINED = "joined"
    CACHED = "cached"
    REPLAYED = "replayed"


class RequestState(StrEnum):
    """Where a request stands: intent → waiting → served or failed; an intent may be aborted."""

    INTENT = "intent"
    WAITING = "waiting"
    SERVED = "served"
    FAILED = "failed"
    ABORTED = "aborted"


class GenerationNotFound(NotFound):
    """There is no such generation, as far as this user may know."""

    reason = "GENERATION_NOT_FOUND"


class RequestIdReused(AlreadyExists):
    """The request_id was used with other parameters."""

    reason = "REQUEST_ID_REUSED"


class RequestIdDead(Conflict):
    """The request was given up and refunded; a new try needs a new request_id."""

    reason = "REQUEST_ID_DEAD"


class RequestInProgress(DependencyDown):
    """Another call is serving the same request_id right now."""

    def __init__(self) -> None:
        super().__init__(
            "this request_id is being served by another call; ask again in a moment",
            reason="REQUEST_IN_PROGRESS",
        )


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What one caller wants; the same request_id must always mean the same ask."""

    request_id: UUID
    user_id: str
    file_id: UUID | None
    pdf_hash: str | None
    page: int
    locale: str


@dataclass(frozen=True, kw_only=True)
class ResolvedPage:
    """A page this user may see, as the Registry describes it."""

    pdf_hash: str
    page: int
    effective_mode: str
    images_count: int


@dataclass(frozen=True, kw_only=True)
class Key:
    """What makes two generations the same piece of work."""

    kind: str
    pdf_hash: str
    page: int
    prompt_version: str
    locale: str
    effective_mode: str
    model: str
    scope: str


@dataclass(frozen=True, kw_only=True)
class Sticker:
    """One explanation note; `box` is left, top, right, bottom as fractions of the page."""

    sticker_id: str
    kind: str
    title: str
    body_markdown: str
    quote: str
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One piece of AI work as it stands."""

    generation_id: UUID
    key: Key
    status: Status
    stage: str
    done: int
    total: int
    attempts: int
    created_at: datetime
    completed_at: datetime | None
    stickers: tuple[Sticker, ...]
    error_reason: str | None
    error_message: str | None


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Where a generation stands in the queue; position 0 means it is not waiting."""

    position: int = 0
    estimated_wait: timedelta = timedelta()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One caller's ask, as recorded."""

    request_id: UUID
    user_id: str
    pdf_hash: str
    page: int
    locale: str
    state: RequestState
    nonce: UUID
    outcome: Outcome
    generation_id: UUID | None

    def is_for(self, ask: Ask, page: ResolvedPage) -> bool:
        asked = (ask.user_id, page.pdf_hash, page.page, ask.locale)
        return asked == (self.user_id, self.pdf_hash, self.page, self.locale)


@dataclass(frozen=True, kw_only=True)
class Refund:
    """A message of the outbox: give a charge back, or down to the price of `served_as`."""

    outbox_id: int
    request_id: UUID
    user_id: str
    reason: str  # generation_failed, request_aborted, repriced
    served_as: Outcome | None
    generation_id: UUID | None


@dataclass(frozen=True, kw_only=True)
class Attached:
    """What attaching a charged request to its generation came to."""

    generation: Generation
    outcome: Outcome
    created: bool
    refund: Refund | None


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A worker's fenced right to one attempt."""

    generation_id: UUID
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """A leased generation, as its worker needs it."""

    lease: Lease
    key: Key
    images_count: int
    created_at: datetime
    leased_until: datetime
    deadline_at: datetime
    time_left: timedelta


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an attempt has come; no stage leaves it as it was."""

    lease: Lease
    stage: str | None = None
    done: int = 0
    total: int = 0


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
    # How long a call may take to turn its intent into a waiter before another may go on with it.
    hold: timedelta
    # How old an intent may grow before the sweep gives it up.
    intent: timedelta
    max_attempts: int
    backoff: tuple[timedelta, ...]
    jitter: timedelta

    def retry_delay(self, failure: Failure, *, spread: float) -> timedelta | None:
        """How long until the next attempt; None when there is none. `spread` is 0 to 1."""
        attempt = failure.lease.attempt
        if failure.permanent or attempt >= self.max_attempts:
            return None
        delay = self.backoff[min(attempt, len(self.backoff)) - 1] + self.jitter * spread
        return max(delay, min(failure.retry_after, RETRY_AFTER_CAP))
