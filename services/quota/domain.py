"""The rules of admission, charge and refund; no I/O, time is an argument.

A `Book` is what Quota knows about one user while it holds that user's lock. `admit` and `settle`
take what is known and give back the answer and the rows to write.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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


def open_book(user_id: str, *, now: datetime) -> Book:
    """A new account, before its first grant; `roll_period` fills it."""
    return Book(user_id=user_id, balance_units=0, period_ends_at=now)


def roll_period(book: Book, *, rules: Rules, now: datetime) -> tuple[Book, tuple[Entry, ...]]:
    """Start the period that `now` lies in: what was left expires, a new allowance is granted."""
    if now < book.period_ends_at:
        return book, ()
    periods = (now - book.period_ends_at) // rules.period + 1
    entries = [
        Entry(user_id=book.user_id, request_id=None, kind="grant", units=rules.units_per_period)
    ]
    if book.balance_units:
        entries.insert(
            0,
            Entry(user_id=book.user_id, request_id=None, kind="expire", units=-book.balance_units),
        )
    rolled = replace(
        book,
        balance_units=rules.units_per_period,
        period_ends_at=book.period_ends_at + periods * rules.period,
    )
    return rolled, tuple(entries)


def limits_at(book: Book, endpoint: str, *, rules: Rules, now: datetime) -> tuple[Limit, ...]:
    """Every window as it stands, for status and receipts."""
    return tuple(_limit(tier, book, endpoint, now) for tier in rules.tiers)


def admit(
    book: Book, request: AdmitRequest, charge: Charge | None, *, rules: Rules, now: datetime
) -> Decided:
    """One decision over identity, windows and balance: all of it or nothing."""
    if charge is not None:
        return Decided(answer=_answer_again(book, request, charge, rules=rules, now=now), book=book)
    limits = limits_at(book, request.purchase.endpoint, rules=rules, now=now)
    full = [limit for limit in limits if limit.tier.blocks and limit.remaining == 0]
    if full:
        wait = max(_wait(limit, book, request.purchase.endpoint, now) for limit in full)
        answer = _answer(Decision.RATE_LIMITED, book, limits, retry_after=wait)
        return Decided(answer=answer, book=book)
    units = rules.prices[request.outcome]
    if book.balance_units < units:
        return Decided(answer=_answer(Decision.QUOTA_EXHAUSTED, book, limits), book=book)
    return _charge(book, request, units, rules=rules, now=now)


def settle(book: Book, charge: Charge | None, refund: Refund, *, rules: Rules) -> Settled:
    """Give a charge back, or what is too much of it; once, and before the charge if need be."""
    if charge is None:
        void = _void(refund)
        return _settled(RefundResult.VOIDED, book, void, kind="void", back=0, reason=refund.reason)
    if not _is_open(charge, refund):
        units = charge.units if charge.status == "charged" else 0
        return Settled(result=RefundResult.ALREADY_SETTLED, units=units, book=book)
    if refund.reason is RefundReason.REPRICED:
        return _reprice(book, charge, refund, rules=rules)
    refunded = replace(charge, status="refunded")
    return _settled(
        RefundResult.REFUNDED,
        book,
        refunded,
        kind="refund",
        back=charge.units,
        reason=refund.reason,
    )


def _is_open(charge: Charge, refund: Refund) -> bool:
    """Whether there is still something to settle between this payer and this charge."""
    if charge.user_id != refund.user_id or charge.status != "charged":
        return False
    if refund.reason is RefundReason.REQUEST_ABORTED:
        # A hit has bought what was there: no later call with its id can undo that.
        return charge.outcome is not Outcome.CACHED
    # Only work that was charged as one's own can turn out to be somebody else's, and only once.
    return refund.reason is not RefundReason.REPRICED or charge.outcome is Outcome.GENERATED


def _reprice(book: Book, charge: Charge, refund: Refund, *, rules: Rules) -> Settled:
    assert refund.served_as is not None
    units = min(charge.units, rules.prices[refund.served_as])
    served = replace(
        charge, outcome=refund.served_as, generation_id=refund.generation_id, units=units
    )
    back = charge.units - units
    return _settled(
        RefundResult.REPRICED, book, served, kind="reprice", back=back, reason=refund.served_as
    )


def _settled(
    result: RefundResult, book: Book, charge: Charge, *, kind: str, back: int, reason: str
) -> Settled:
    return Settled(
        result=result,
        units=charge.units if charge.status == "charged" else 0,
        book=replace(book, balance_units=book.balance_units + back),
        changes=_changed(charge, kind=kind, units=back, reason=reason),
    )


def _void(refund: Refund) -> Charge:
    return Charge(
        request_id=refund.request_id,
        user_id=refund.user_id,
        purchase=None,
        outcome=None,
        generation_id=None,
        units=0,
        status="void",
    )


def _charge(
    book: Book, request: AdmitRequest, units: int, *, rules: Rules, now: datetime
) -> Decided:
    admission = Admission(endpoint=request.purchase.endpoint, admitted_at=now)
    charged = replace(
        book,
        balance_units=book.balance_units - units,
        admissions=(*book.admissions, admission),
    )
    charge = Charge(
        request_id=request.request_id,
        user_id=book.user_id,
        purchase=request.purchase,
        outcome=request.outcome,
        generation_id=request.generation_id,
        units=units,
        status="charged",
    )
    limits = limits_at(charged, request.purchase.endpoint, rules=rules, now=now)
    changes = _changed(charge, kind="charge", units=-units, reason=request.outcome)
    return Decided(
        answer=_answer(Decision.ADMITTED, charged, limits, units=units),
        book=charged,
        changes=replace(changes, admissions=(admission,)),
    )


def _changed(charge: Charge, *, kind: str, units: int, reason: str) -> Changes:
    entry = Entry(
        user_id=charge.user_id, request_id=charge.request_id, kind=kind, units=units, reason=reason
    )
    return Changes(charges=(charge,), entries=(entry,))


def _answer_again(
    book: Book, request: AdmitRequest, charge: Charge, *, rules: Rules, now: datetime
) -> Answer:
    limits = limits_at(book, request.purchase.endpoint, rules=rules, now=now)
    if charge.user_id != book.user_id:
        return _answer(Decision.REQUEST_ID_REUSED, book, limits)
    if charge.status != "charged":
        return _answer(Decision.REQUEST_ID_DEAD, book, limits)
    if charge.purchase != request.purchase:
        return _answer(Decision.REQUEST_ID_REUSED, book, limits)
    again = _answer(Decision.REPLAYED, book, limits, units=charge.units)
    return replace(again, outcome=charge.outcome, generation_id=charge.generation_id)


def _answer(
    decision: Decision,
    book: Book,
    limits: tuple[Limit, ...],
    *,
    units: int = 0,
    retry_after: timedelta | None = None,
) -> Answer:
    return Answer(
        decision=decision,
        units=units,
        remaining_units=book.balance_units,
        limits=limits,
        share_to_cache=book.share_to_cache,
        retry_after=retry_after,
    )


def _entries(tier: Tier, book: Book, endpoint: str, now: datetime) -> list[datetime]:
    """Admissions inside the window, oldest first; one leaves the moment it is `window` old."""
    return [
        admission.admitted_at
        for admission in book.admissions
        if admission.admitted_at > now - tier.window
        and (tier.across_endpoints or admission.endpoint == endpoint)
    ]


def _limit(tier: Tier, book: Book, endpoint: str, now: datetime) -> Limit:
    entries = _entries(tier, book, endpoint, now)
    return Limit(
        tier=tier, used=len(entries), resets_at=entries[0] + tier.window if entries else None
    )


def _wait(limit: Limit, book: Book, endpoint: str, now: datetime) -> timedelta:
    """How long until the entry that must leave leaves; with several too many, not the oldest."""
    entries = _entries(limit.tier, book, endpoint, now)
    return entries[len(entries) - limit.tier.limit] + limit.tier.window - now
