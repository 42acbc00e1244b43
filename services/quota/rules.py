"""The rules of admission, charge and refund; no I/O, time is an argument.

A `Book` is what Quota knows about one user while it holds that user's lock. `admit` and `settle`
take what is known and give back the answer and the rows to write.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from services.quota.domain import (
    Admission,
    AdmitRequest,
    Answer,
    Book,
    Changes,
    Charge,
    Decided,
    Decision,
    Entry,
    Limit,
    Outcome,
    Refund,
    RefundReason,
    RefundResult,
    Rules,
    Settled,
    Tier,
)


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
    """One decision over identity, preference, windows and balance: all of it or nothing."""
    if charge is not None:
        return Decided(answer=_answer_again(book, request, charge, rules=rules, now=now), book=book)
    limits = limits_at(book, request.purchase.endpoint, rules=rules, now=now)
    if request.expected_share_to_cache not in (None, book.share_to_cache):
        return Decided(answer=_answer(Decision.PREFERENCE_CHANGED, book, limits), book=book)
    full = [limit for limit in limits if limit.tier.blocks and limit.remaining == 0]
    if full:
        wait = max(_wait(limit, book, request.purchase.endpoint, now) for limit in full)
        answer = _answer(Decision.RATE_LIMITED, book, limits, retry_after=wait)
        return Decided(answer=answer, book=book)
    units = rules.price(request.outcome, share_to_cache=book.share_to_cache)
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
    if refund.reason is RefundReason.REPRICED:
        # Only work charged as one's own can turn out to be somebody else's, and only once.
        made, shared = charge.outcome is Outcome.GENERATED, refund.served_as
        return made and shared is not Outcome.GENERATED
    return True


def _reprice(book: Book, charge: Charge, refund: Refund, *, rules: Rules) -> Settled:
    assert refund.served_as is not None
    price = rules.price(refund.served_as, share_to_cache=charge.share_to_cache)
    units = min(charge.units, price)
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
        share_to_cache=book.share_to_cache,
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
