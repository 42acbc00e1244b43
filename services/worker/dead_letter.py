"""Generations that failed, as values: what is kept about them, and which of them are meant."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from services.runtime.errors import LimitReached, NotFound


class DeadLetterNotFound(NotFound):
    """It has not failed, or so long ago that nobody remembers."""

    reason = "DEAD_LETTER_NOT_FOUND"


class SpendingCeiling(LimitReached):
    """Today's money is spent; nothing new is made."""

    reason = "SPENDING_CEILING"


@dataclass(frozen=True, kw_only=True)
class AttemptFailure:
    """How one attempt failed."""

    attempt: int
    reason: str
    message: str
    failed_at: datetime


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """A generation that was given up: why, after what, at what cost."""

    generation_id: UUID
    kind: str
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str
    model: str
    prompt_version: str
    private: bool
    reason: str
    message: str
    permanent: bool
    attempts: int
    failures: tuple[AttemptFailure, ...]
    created_at: datetime
    failed_at: datetime
    cost_nanodollars: int = 0
    redriven_at: datetime | None = None
    redriven_as: UUID | None = None

    def costing(self, nanodollars: int) -> "DeadLetter":
        return replace(self, cost_nanodollars=nanodollars)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which dead letters; None matches all."""

    reason: str | None = None
    kind: str | None = None
    pdf_hash: str | None = None
    locale: str | None = None
    model: str | None = None
    begins_at: datetime | None = None
    ends_at: datetime | None = None
    generation_ids: tuple[UUID, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a listing stopped."""

    failed_at: datetime
    generation_id: UUID


class Redrive(StrEnum):
    """What became of the wish to start one anew."""

    STARTED = "started"
    ALREADY_LIVE = "already_live"
    GONE = "gone"


@dataclass(frozen=True, kw_only=True)
class Redriven:
    """The same, with the generation that takes its place."""

    verdict: Redrive
    generation_id: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What generations have cost, and whether today's money is spent."""

    costs: Mapping[UUID, int]
    exhausted: bool = False
    resets_in: timedelta = timedelta()


@dataclass(frozen=True, kw_only=True)
class RedriveProgress:
    """How far a redrive has come."""

    total: int
    counts: Mapping[Redrive, int]
    # Why they failed, most first; told once.
    reasons: Mapping[str, int]
