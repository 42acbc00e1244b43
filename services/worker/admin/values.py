"""What the other services tell the admin pages, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Generic, TypeVar

Value = TypeVar("Value")

# The Cache counts no further, neither jobs nor refunds.
MOST_COUNTED = 100_000


@dataclass(frozen=True, kw_only=True)
class Part(Generic[Value]):
    """One part of a page: what it shows, or why it is missing."""

    value: Value | None = None
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One lane of the queue; expired leases are among those that wait."""

    name: str
    waiting: int
    leased: int
    retrying: int
    expired: int
    oldest_wait: timedelta | None


@dataclass(frozen=True, kw_only=True)
class Queue:
    lanes: Sequence[Lane]
    refunds_due: int
    taken_at: datetime

    @property
    def has_more_jobs(self) -> bool:
        jobs = sum(lane.waiting + lane.leased + lane.retrying for lane in self.lanes)
        return jobs >= MOST_COUNTED

    @property
    def has_more_refunds(self) -> bool:
        return self.refunds_due >= MOST_COUNTED


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What leases came to grief on one day."""

    leases_expired: int = 0
    attempts_spent: int = 0
    queue_timeouts: int = 0


@dataclass(frozen=True, kw_only=True)
class RefundTotal:
    reason: str
    count: int
    units: int


@dataclass(frozen=True, kw_only=True)
class Money:
    """What one day cost, what sharing saved, and what was given back."""

    spent_nanodollars: int = 0
    saved_nanodollars: int = 0
    shared_requests: int = 0
    refunds: Sequence[RefundTotal] = ()

    @property
    def refunds_count(self) -> int:
        return sum(refund.count for refund in self.refunds)

    @property
    def refunds_units(self) -> int:
        return sum(refund.units for refund in self.refunds)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about references that is not as it must be."""

    problem: str
    pdf_hash: str
    file_id: str
    counted: int
    actual: int


@dataclass(frozen=True, kw_only=True)
class References:
    documents: int
    references: int
    findings_count: int
    findings: Sequence[Finding]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One thing that happened to a request, for a timeline."""

    at: datetime
    title: str
    detail: str = ""
    # good, bad or plain
    tone: str = "plain"


@dataclass(frozen=True, kw_only=True)
class Story:
    """What became of one request, as the Cache tells it."""

    request_id: str
    user_id: str
    kind: str
    pdf_hash: str
    page: int
    locale: str
    state: str
    outcome: str
    private: bool
    units: int
    charge_known: bool
    refund_due: bool
    sentences: Sequence[str]
    generation_id: str
    generation_status: str
    model: str
    prompt_version: str
    clocks: Mapping[str, datetime] = field(default_factory=dict)
    attempts_left: int | None = None
    moments: Sequence[Moment] = ()


Days = Mapping[date, Value]


@dataclass(frozen=True, kw_only=True)
class Movements:
    """What a user's newest ledger lines say about one request; there may be older lines."""

    found: Sequence[Moment] = ()
    has_older_lines: bool = False
