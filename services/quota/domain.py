"""What Quota talks about, as values: purchases, charges, windows, books; no I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

DAY = timedelta(hours=24)


class Outcome(StrEnum):
    GENERATED = "generated"
    JOINED = "joined"
    CACHED = "cached"


class Decision(StrEnum):
    ADMITTED = "admitted"
    REPLAYED = "replayed"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    REQUEST_ID_REUSED = "request_id_reused"
    REQUEST_ID_DEAD = "request_id_dead"
    PREFERENCE_CHANGED = "preference_changed"


class RefundReason(StrEnum):
    GENERATION_FAILED = "generation_failed"
    REQUEST_ABORTED = "request_aborted"
    REPRICED = "repriced"
    GOODWILL = "goodwill"


class RefundResult(StrEnum):
    REFUNDED = "refunded"
    ALREADY_SETTLED = "already_settled"
    VOIDED = "voided"
    REPRICED = "repriced"


@dataclass(frozen=True, kw_only=True)
class Tier:
    """At most `limit` admissions in any `window`; a tier that does not block only warns."""

    name: str
    limit: int
    window: timedelta
    blocks: bool = True
    across_endpoints: bool = False


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What everything costs and how much is allowed."""

    tiers: tuple[Tier, ...]
    prices: Mapping[Outcome, int]
    units_per_period: int
    period: timedelta

    def price(self, outcome: Outcome, *, share_to_cache: bool) -> int:
        """Units for an outcome; who does not share gets nothing free."""
        units = self.prices[outcome]
        return units if share_to_cache or units else self.prices[Outcome.GENERATED]


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """What a request wants to buy; the same request_id must always mean the same purchase."""

    user_id: str
    endpoint: str
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str


@dataclass(frozen=True, kw_only=True)
class AdmitRequest:
    request_id: UUID
    purchase: Purchase
    outcome: Outcome
    generation_id: UUID | None = None
    # What the caller took the preference to be; None when it does not mind.
    expected_share_to_cache: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """What a user has chosen; `updated_at` is None for who never did."""

    share_to_cache: bool = True
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One row of the ledger: what a request_id bought, and whether it still counts."""

    request_id: UUID
    user_id: str
    # None for a void: it was refunded before it was ever charged.
    purchase: Purchase | None
    outcome: Outcome | None
    generation_id: UUID | None
    units: int
    status: str  # charged, refunded, void
    # What the payer's preference was when it was charged.
    share_to_cache: bool = True


@dataclass(frozen=True, kw_only=True)
class Refund:
    """A charge to give back: whole, or down to the price of `served_as` when it is repriced."""

    request_id: UUID
    user_id: str
    reason: RefundReason
    served_as: Outcome | None = None
    generation_id: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the append-only history of an account; the sum of `units` is the balance."""

    user_id: str
    request_id: UUID | None
    kind: str  # grant, expire, charge, refund, reprice, void
    units: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Admission:
    """When a request was let in, and to which endpoint: what the windows count."""

    endpoint: str
    admitted_at: datetime


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One window as it stands."""

    tier: Tier
    used: int
    resets_at: datetime | None

    @property
    def remaining(self) -> int:
        return max(0, self.tier.limit - self.used)

    @property
    def warning(self) -> bool:
        return not self.tier.blocks and self.used > self.tier.limit


@dataclass(frozen=True, kw_only=True)
class Book:
    """One user's account and windows, as locked."""

    user_id: str
    balance_units: int
    period_ends_at: datetime
    share_to_cache: bool = True
    admissions: tuple[Admission, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Answer:
    decision: Decision
    units: int = 0
    remaining_units: int = 0
    limits: tuple[Limit, ...] = ()
    share_to_cache: bool = True
    retry_after: timedelta | None = None
    outcome: Outcome | None = None
    generation_id: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Rows to write for one decision."""

    charges: tuple[Charge, ...] = ()
    entries: tuple[Entry, ...] = ()
    admissions: tuple[Admission, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decided:
    answer: Answer
    book: Book
    changes: Changes = field(default_factory=Changes)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What became of a refund; `units` is what the request costs now."""

    result: RefundResult
    units: int
    book: Book
    changes: Changes = field(default_factory=Changes)
