"""Generations, requests and leases as values, and the rules about them; no I/O."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID, uuid5

from services.runtime.errors import AlreadyExists, Conflict, DependencyDown, NotFound
from services.runtime.settings import CONVERSION_VERSION

LOCALES = ("en", "zh-Hans")
PAGE_EXPLANATION = "page_explanation"
# A whole document; its key names the first page.
DOCUMENT_MARKDOWN = "document_markdown"
# The language of what is in whatever language it is.
UNDETERMINED = "und"
SHARED_SCOPE = "shared"


# Why results go that an admin does not want any more.
INVALIDATED = "INVALIDATED"
# Why the results of a document go that nobody refers to any more. FIND_STALE knows it too.
DOCUMENT_COLLECTED = "DOCUMENT_COLLECTED"

# Names the generations that requests start.
_STARTED_BY = UUID("6f1d2a0e-9a55-5a0c-8a3a-2d7c1c0f5b61")


def generation_started_by(request_id: UUID) -> UUID:
    """The id of the generation a request starts, if it starts one: known before it exists.

    So the charge can name what it buys, and costs find who caused them, whoever charges again.
    """
    return uuid5(_STARTED_BY, str(request_id))


def version_of(kind: str, *, prompt_version: str) -> str:
    """What a result of this kind is made with today."""
    return CONVERSION_VERSION if kind == DOCUMENT_MARKDOWN else prompt_version


def scope_of(user_id: str, *, shares: bool) -> str:
    """Whose results these are: everybody's, or this user's alone."""
    return SHARED_SCOPE if shares else f"user:{user_id}"


class Status(StrEnum):
    GENERATING = "generating"
    READY = "ready"
    FAILED = "failed"


class Outcome(StrEnum):
    GENERATED = "generated"
    JOINED = "joined"
    CACHED = "cached"
    REPLAYED = "replayed"


class Lane(IntEnum):
    """Work that somebody waits for goes before work that nobody does."""

    INTERACTIVE = 0
    BACKGROUND = 1


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


class RequestNotFound(NotFound):
    """There is no such request, as far as this user may know."""

    reason = "REQUEST_NOT_FOUND"


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


class Ask(NamedTuple):
    """What one caller wants; the same request_id must always mean the same ask."""

    request_id: UUID
    user_id: str
    file_id: UUID | None
    pdf_hash: str | None
    page: int
    locale: str
    # The id was made here a moment ago, so nobody can have used it before.
    id_is_new: bool = False
    # Nobody is waiting for it.
    background: bool = False
    # An older version may be shown while a new one is made.
    allow_stale: bool = False
    kind: str = PAGE_EXPLANATION
    # When it came, on a clock that only measures.
    asked_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ResolvedPage:
    """A page this user may see, as the Registry describes it."""

    pdf_hash: str
    page: int
    effective_mode: str
    images_count: int
    # Everything a model sees of the page and its neighbours; empty when that is not known.
    context_fingerprint: str = ""

    def as_document(self) -> "ResolvedPage":
        """The document it begins: what the first page looks like says nothing about the rest."""
        return ResolvedPage(
            pdf_hash=self.pdf_hash, page=self.page, effective_mode="text_only", images_count=0
        )


class Key(NamedTuple):
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
    # What was made, as bytes of the messages that carry it; None until it is ready.
    result: bytes | None
    # The same for results from before they were kept as bytes.
    result_json: list[dict[str, Any]] | None
    error_reason: str | None
    error_message: str | None
    lane: Lane = Lane.INTERACTIVE

    @property
    def is_private(self) -> bool:
        return self.key.scope != SHARED_SCOPE


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
    scope: str
    background: bool
    kind: str

    def is_for(self, ask: Ask, page: ResolvedPage) -> bool:
        asked = (ask.user_id, ask.kind, page.pdf_hash, page.page, ask.locale)
        return asked == (self.user_id, self.kind, self.pdf_hash, self.page, self.locale)


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
class Selection:
    """Which generations an admin, or the Registry, wants out of service; None matches all."""

    pdf_hash: str | None = None
    page: int | None = None
    prompt_version: str | None = None
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class Invalidated:
    """How many ready results were retired and how many running generations ended."""

    retired: int
    failed: int


@dataclass(frozen=True, kw_only=True)
class AttemptFailure:
    """How one attempt at a generation failed."""

    attempt: int
    reason: str
    message: str
    failed_at: datetime


@dataclass(frozen=True, kw_only=True)
class GenerationClocks:
    """The clocks of a generation under way; None where one does not run."""

    run_after: datetime | None
    # Since when no worker has taken it up.
    waits_since: datetime | None
    leased_until: datetime | None
    deadline_at: datetime | None
    # Attempts made in earnest.
    tried: int


@dataclass(frozen=True, kw_only=True)
class RequestRecord:
    """Everything the Cache has on record about a request."""

    request: Request
    units: int | None
    refund_due: bool
    created_at: datetime
    updated_at: datetime
