"""What Quota talks about, as values: rules, requests, answers, refunds, operations; no I/O.

The rules themselves are SQL (migrations/0009 and 0010), so that a batch is one round trip.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from uuid import UUID

DAY = timedelta(hours=24)
SOFT_WINDOW = timedelta(minutes=1)
HARD_WINDOW = timedelta(seconds=10)

ENDPOINTS = ("explain_page", "convert_document")
PLANS = ("free", "beta", "pro_monthly", "pro_annual")


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
    BUDGET_EXHAUSTED = "budget_exhausted"
    SPENDING_CEILING = "spending_ceiling"


class RefundReason(StrEnum):
    GENERATION_FAILED = "generation_failed"
    REQUEST_ABORTED = "request_aborted"
    REPRICED = "repriced"
    GOODWILL = "goodwill"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How often one may ask: soft warns, hard and daily block; daily counts every endpoint."""

    soft: int
    hard: int
    daily: int


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What everything costs and how much is allowed, by plan and endpoint."""

    limits: Mapping[tuple[str, str], Limits]
    units: Mapping[str, int]
    prices: Mapping[Outcome, int]
    period: timedelta
    # The plan of who has no account yet.
    first_plan: str = "beta"
    # Decide, tell and count, but let everybody pass.
    shadow: bool = False
    # In nano-dollars; None is no limit.
    monthly_budget: int | None = None
    daily_ceiling: int | None = None
    document_ceiling: int | None = None

    def as_json(self) -> dict[str, Any]:
        """As the SQL functions read them."""
        return {
            "endpoints": sorted({endpoint for _, endpoint in self.limits}),
            "period_seconds": self.period.total_seconds(),
            "prices": dict(self.prices),
            "plans": [{"plan": plan, "units": units} for plan, units in self.units.items()],
            "soft_seconds": SOFT_WINDOW.total_seconds(),
            "hard_seconds": HARD_WINDOW.total_seconds(),
            "daily_seconds": DAY.total_seconds(),
            "limits": [
                {
                    "plan": plan,
                    "endpoint": endpoint,
                    "hard_limit": limits.hard,
                    "daily_limit": limits.daily,
                }
                for (plan, endpoint), limits in self.limits.items()
            ],
            "shadow": self.shadow,
            "monthly_budget": self.monthly_budget,
            "daily_ceiling": self.daily_ceiling,
            "document_ceiling": self.document_ceiling,
        }


class AdmitRequest(NamedTuple):
    """A request and what it wants to buy: one column of ADMIT_MANY for each field, in order.

    The same request_id must always mean the same user, endpoint and page.
    """

    request_id: UUID
    user_id: str
    endpoint: str
    outcome: str
    generation_id: UUID | None
    pdf_hash: str
    page: int
    locale: str
    effective_mode: str
    # What the caller took the preference to be; None when it does not mind.
    expected_share_to_cache: bool | None


class Windows(NamedTuple):
    """How many were let in since each window began, and when the oldest of them was."""

    soft_used: int = 0
    soft_since: datetime | None = None
    hard_used: int = 0
    hard_since: datetime | None = None
    daily_used: int = 0
    daily_since: datetime | None = None


class Limit(NamedTuple):
    """One window as it stands."""

    tier: str
    limit: int
    used: int
    resets_at: datetime | None
    warning: bool = False

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used)


class Answer(NamedTuple):
    """One row of ADMIT_MANY."""

    decision: str
    units: int
    remaining_units: int
    share_to_cache: bool
    retry_after: timedelta | None
    # Of the first time, for a replay.
    outcome: str | None
    generation_id: UUID | None
    shadow_decision: str | None
    limits: tuple[Limit, ...]


class Status(NamedTuple):
    """What a user may still ask for."""

    limits: tuple[Limit, ...]
    remaining_units: int
    period_ends_at: datetime


@dataclass(frozen=True, kw_only=True)
class Preferences:
    """What a user has chosen; `updated_at` is None for who never did."""

    share_to_cache: bool = True
    updated_at: datetime | None = None


class Refund(NamedTuple):
    """A charge to give back: whole, or down to the price of `served_as` when it is repriced.

    One column of SETTLE_REFUNDS for each field, in order.
    """

    request_id: UUID
    user_id: str
    reason: str
    served_as: str | None = None
    generation_id: UUID | None = None


class Settled(NamedTuple):
    """What became of a refund: one row of SETTLE_REFUNDS; `units` is what the request costs now."""

    result: str
    units: int
    remaining_units: int


class Charge(NamedTuple):
    """What one request was charged, as things stand: one row of READ_CHARGE."""

    units: int
    status: str
    outcome: str | None
    generation_id: UUID | None
    pdf_hash: str | None
    page: int | None
    locale: str | None
    effective_mode: str | None
    charged_at: datetime
    refunded_at: datetime | None


class LedgerLine(NamedTuple):
    """One line of the ledger and the request it is about: one row of LIST_LEDGER."""

    entry_id: int
    created_at: datetime
    kind: str
    units: int
    reason: str
    request_id: UUID | None
    outcome: str | None
    generation_id: UUID | None
    pdf_hash: str | None
    page: int | None
    locale: str | None
    effective_mode: str | None
    endpoint: str | None

    @property
    def explanation(self) -> str:
        """What happened, in words a user understands."""
        if self.kind == "reset":
            return f"Reset by an administrator: {self.reason}"
        of_documents = _OF_DOCUMENTS if self.endpoint == "convert_document" else {}
        event = (self.kind, self.reason)
        return of_documents.get(event) or _EXPLANATIONS.get(event) or _EXPLANATIONS[self.kind, ""]


_EXPLANATIONS = {
    ("grant", ""): "Your allowance for a new period.",
    ("expire", ""): "What was left of the last period.",
    ("charge", "generated"): "A page was explained for you.",
    ("charge", "cached"): "You opened an explanation that was ready.",
    ("charge", "joined"): "You joined an explanation that was being made.",
    ("charge", ""): "A request was charged.",
    ("refund", "generation_failed"): "Given back: the explanation failed.",
    ("refund", "request_aborted"): "Given back: the request was given up before it was served.",
    ("refund", "goodwill"): "Given back by an administrator.",
    ("refund", ""): "Given back.",
    ("reprice", "joined"): "Given back: somebody else had started the same explanation.",
    ("reprice", "cached"): "Given back: the explanation was ready already.",
    ("reprice", ""): "Given back: it was served in a cheaper way.",
    ("void", ""): "Given up before it was charged; it cost nothing.",
}
_OF_DOCUMENTS = {
    ("charge", "generated"): "A document was converted for you.",
    ("charge", "cached"): "You opened a conversion that was ready.",
    ("charge", "joined"): "You joined a conversion that was being made.",
    ("refund", "generation_failed"): "Given back: the conversion failed.",
    ("reprice", "joined"): "Given back: somebody else had started the same conversion.",
    ("reprice", "cached"): "Given back: the conversion was ready already.",
}


class Operation(NamedTuple):
    """One call to a model: one column of RECORD_OPERATIONS for each field, in order."""

    operation_id: UUID
    user_id: str | None
    generation_id: UUID | None
    attempt: int
    endpoint: str
    pdf_hash: str | None
    page: int | None
    locale: str | None
    effective_mode: str | None
    model: str
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    duration_ms: int
    outcome: str


class Costs(NamedTuple):
    """What was spent and what sharing saved."""

    operations: int = 0
    failed_operations: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    cost_nanodollars: int = 0
    shared_requests: int = 0
    saved_nanodollars: int = 0


class RefundTotal(NamedTuple):
    """What was given back for one reason: one row of READ_REFUNDS_BY_DAY."""

    reason: str
    number: int
    units: int


class DailyTotals(NamedTuple):
    """One UTC day ("2026-11-18") of everybody."""

    day: str
    costs: Costs
    refunds: tuple[RefundTotal, ...]


class CostReport(NamedTuple):
    """Costs of a time span, in all, by UTC day and by document."""

    begins_at: datetime
    ends_at: datetime
    total: Costs
    days: Mapping[str, Costs]
    documents: Mapping[str, Costs]


class Budget(NamedTuple):
    """Money that may be spent; no limit where it is None."""

    spent_nanodollars: int
    limit_nanodollars: int | None
    resets_at: datetime | None = None

    @property
    def exhausted(self) -> bool:
        limit = self.limit_nanodollars
        return limit is not None and self.spent_nanodollars >= limit


class Budgets(NamedTuple):
    """Of one user this month, of everybody today, and of one document."""

    user: Budget
    day: Budget
    document: Budget


def limits_of(limits: Limits, windows: Windows) -> tuple[Limit, ...]:
    """Every window as it stands, for status and receipts."""
    soft_used, soft_since, hard_used, hard_since, daily_used, daily_since = windows
    return (
        Limit(
            "soft",
            limits.soft,
            soft_used,
            soft_since and soft_since + SOFT_WINDOW,
            soft_used > limits.soft,
        ),
        Limit("hard", limits.hard, hard_used, hard_since and hard_since + HARD_WINDOW),
        Limit("daily", limits.daily, daily_used, daily_since and daily_since + DAY),
    )
