"""Translates between protobuf messages and Quota's values."""

import base64
import binascii
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from glossa.quota.v1 import quota_pb2 as pb
from glossa.registry.v1 import registry_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from services.quota.domain import (
    ENDPOINTS,
    AdmitRequest,
    Answer,
    Budget,
    Charge,
    CostReport,
    Costs,
    DailyTotals,
    Decision,
    LedgerLine,
    Limit,
    Operation,
    Outcome,
    Preferences,
    Refund,
    RefundReason,
    Settled,
    Status,
)
from services.runtime.timestamps import fill_timestamp, parse_timestamp
from services.runtime.validation import (
    parse_identity,
    parse_pdf_hash,
    parse_text,
    parse_uuid,
    require,
)

# Far above what any model takes; costs stay within 64 bits.
MAX_TOKENS = 100_000_000
MAX_DURATION = timedelta(days=1)
LONGEST_REPORT = timedelta(days=100)
NEWEST_ENTRY = 2**63 - 1

_OUTCOMES = {
    pb.OUTCOME_GENERATED: Outcome.GENERATED.value,
    pb.OUTCOME_JOINED: Outcome.JOINED.value,
    pb.OUTCOME_CACHED: Outcome.CACHED.value,
}
_OUTCOME_VALUES = {name: value for value, name in _OUTCOMES.items()}
_REASONS = {
    pb.REFUND_REASON_GENERATION_FAILED: RefundReason.GENERATION_FAILED,
    pb.REFUND_REASON_REQUEST_ABORTED: RefundReason.REQUEST_ABORTED,
    pb.REFUND_REASON_REPRICED: RefundReason.REPRICED,
    pb.REFUND_REASON_GOODWILL: RefundReason.GOODWILL,
}
_MODES = {
    registry_pb2.EFFECTIVE_MODE_TEXT_ONLY: "text_only",
    registry_pb2.EFFECTIVE_MODE_WITH_IMAGES: "with_images",
}
_MODE_VALUES = {name: value for value, name in _MODES.items()}
_DECISIONS = {one.value: pb.Decision.Value(f"DECISION_{one.upper()}") for one in Decision}


def admit_request(item: pb.AdmitRequest) -> AdmitRequest:
    outcome = _OUTCOMES.get(item.outcome)
    require(outcome is not None, "outcome", "must be generated, joined or cached")
    assert outcome is not None
    pdf_hash, page, locale, mode = _page(item.page)
    return AdmitRequest(
        parse_uuid("request_id", item.request_id),
        parse_identity("user_id", item.user_id),
        _endpoint(item.endpoint),
        outcome,
        _optional_uuid("generation_id", item.generation_id),
        pdf_hash,
        page,
        locale,
        mode,
        item.expected_share_to_cache if item.HasField("expected_share_to_cache") else None,
    )


def admit_responses(answers: Iterable[Answer]) -> pb.AdmitManyResponse:
    many = pb.AdmitManyResponse()
    for answer in answers:
        fill_admit_response(many.responses.add(), answer)
    return many


def fill_admit_response(response: pb.AdmitResponse, answer: Answer) -> None:
    """In place: a message made first and copied into its parent takes twice as long."""
    response.decision = _DECISIONS[answer.decision]
    response.receipt.units = answer.units
    response.receipt.remaining_units = answer.remaining_units
    response.share_to_cache = answer.share_to_cache
    for limit in answer.limits:
        _fill_limit(response.limits.add(), limit)
    if answer.retry_after is not None:
        response.retry_after.FromTimedelta(answer.retry_after)
    if answer.outcome is not None:
        response.outcome = _OUTCOME_VALUES[answer.outcome]
    if answer.generation_id is not None:
        response.generation_id = str(answer.generation_id)
    if answer.shadow_decision is not None:
        response.shadow_decision = _DECISIONS[answer.shadow_decision]


def refund(item: pb.RefundRequest.Item) -> Refund:
    require(item.reason in _REASONS, "reason", "must be set")
    reason = _REASONS[item.reason]
    repriced = reason is RefundReason.REPRICED
    require(item.served_as in _OUTCOMES or not repriced, "served_as", "must be set to reprice")
    return Refund(
        parse_uuid("request_id", item.request_id),
        parse_identity("user_id", item.user_id),
        reason,
        _OUTCOMES[item.served_as] if repriced else None,
        _optional_uuid("generation_id", item.generation_id),
    )


def generation_refund(request: pb.RefundRequest) -> tuple[UUID, str]:
    """Which generation everyone gets their charge back for, and why."""
    allowed = (pb.REFUND_REASON_GENERATION_FAILED, pb.REFUND_REASON_GOODWILL)
    require(not request.items, "items", "must be empty with generation_id")
    require(request.reason in allowed, "reason", "must be generation failed or goodwill")
    return parse_uuid("generation_id", request.generation_id), _REASONS[request.reason]


def refunded(item: Refund, settled: Settled) -> pb.RefundResponse.Item:
    return pb.RefundResponse.Item(
        result=pb.RefundResult.Value(f"REFUND_RESULT_{settled.result.upper()}"),
        receipt=pb.Receipt(units=settled.units, remaining_units=settled.remaining_units),
        request_id=str(item.request_id),
        user_id=item.user_id,
    )


def quota_status(status: Status) -> pb.GetQuotaStatusResponse:
    return pb.GetQuotaStatusResponse(
        tiers=[
            pb.TierStatus(
                tier=limit.tier,
                limit=limit.limit,
                used=limit.used,
                remaining=limit.remaining,
                resets_at=_timestamp(limit.resets_at),
            )
            for limit in status.limits
        ],
        remaining_units=status.remaining_units,
        period_ends_at=_timestamp(status.period_ends_at),
    )


def preferences_message(preferences: Preferences) -> pb.Preferences:
    return pb.Preferences(
        share_to_cache=preferences.share_to_cache, updated_at=_timestamp(preferences.updated_at)
    )


def operation(item: pb.Operation) -> Operation:
    pdf_hash, page, locale, mode = (
        _page(item.page) if item.HasField("page") else (None, None, None, None)
    )
    given = _count("input_tokens", item.input_tokens, MAX_TOKENS)
    return Operation(
        parse_uuid("operation_id", item.operation_id),
        parse_identity("user_id", item.user_id) if item.user_id else None,
        _optional_uuid("generation_id", item.generation_id),
        _count("attempt", item.attempt, 2**31 - 1),
        _endpoint(item.endpoint),
        pdf_hash,
        page,
        locale,
        mode,
        parse_text("model", item.model, most=100),
        given,
        # Part of the input, and counted in it.
        _count("cached_input_tokens", item.cached_input_tokens, given),
        _count("output_tokens", item.output_tokens, MAX_TOKENS),
        _milliseconds("duration", item),
        parse_text("outcome", item.outcome, most=64),
    )


def charge(found: Charge) -> pb.Charge:
    message = pb.Charge(
        units=found.units if found.status == "charged" else 0,
        generation_id=str(found.generation_id) if found.generation_id else "",
        charged_at=_timestamp(found.charged_at),
    )
    if found.outcome is not None:
        message.outcome = _OUTCOME_VALUES[found.outcome]
    if found.refunded_at is not None:
        message.refunded_at.FromDatetime(found.refunded_at)
    _render_page(message.page, found)
    return message


def ledger_entry(line: LedgerLine) -> pb.LedgerEntry:
    entry = pb.LedgerEntry(
        entry_id=line.entry_id,
        created_at=_timestamp(line.created_at),
        kind=pb.EntryKind.Value(f"ENTRY_KIND_{line.kind.upper()}"),
        units=line.units,
        explanation=line.explanation,
        request_id=str(line.request_id) if line.request_id else "",
        generation_id=str(line.generation_id) if line.generation_id else "",
    )
    if line.outcome is not None:
        entry.outcome = _OUTCOME_VALUES[line.outcome]
    _render_page(entry.page, line)
    return entry


def _render_page(message: pb.PageContext, about: LedgerLine | Charge) -> None:
    if about.pdf_hash is not None:
        message.pdf_hash, message.page = about.pdf_hash, about.page or 0
        message.locale = about.locale or ""
        message.effective_mode = _MODE_VALUES[about.effective_mode or "text_only"]


def page_token(entry_id: int) -> str:
    return base64.urlsafe_b64encode(f"entry {entry_id}".encode()).decode()


def parse_page_token(token: str) -> int:
    """The entry before which the page begins."""
    if not token:
        return NEWEST_ENTRY
    try:
        word, number = base64.urlsafe_b64decode(token).decode().split(" ")
        entry_id = int(number)
    except (binascii.Error, UnicodeError, ValueError):
        word, entry_id = "", 0
    require(
        word == "entry" and 0 < entry_id <= NEWEST_ENTRY,
        "page_token",
        "must be next_page_token of the page before",
    )
    return entry_id


def cost_report(report: CostReport) -> pb.GetUserCostsResponse:
    response = pb.GetUserCostsResponse(
        total=_costs(report.total),
        begins_at=_timestamp(report.begins_at),
        ends_at=_timestamp(report.ends_at),
    )
    for day, costs in report.days.items():
        response.days.add(day=day, costs=_costs(costs))
    for pdf_hash, costs in report.documents.items():
        response.documents.add(pdf_hash=pdf_hash, costs=_costs(costs))
    return response


def daily_totals(days: Iterable[DailyTotals]) -> pb.ListDailyTotalsResponse:
    response = pb.ListDailyTotalsResponse()
    for one in days:
        day = response.days.add(day=one.day, costs=_costs(one.costs))
        for refund in one.refunds:
            day.refunds.add(reason=refund.reason, count=refund.number, units=refund.units)
    return response


def day_span(request: pb.ListDailyTotalsRequest) -> tuple[date, date]:
    first = _day("first_day", request.first_day)
    last = _day("last_day", request.last_day)
    require(first <= last < first + LONGEST_REPORT, "last_day", "must make 1 to 100 days")
    return first, last


def _day(field: str, written: str) -> date:
    try:
        day = datetime.strptime(written, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        day = date.max
    # A year after the last cannot be counted to.
    require(day.year < date.max.year, field, "must be a date like 2026-11-18")
    return day


def budget_message(budget: Budget) -> pb.Budget:
    return pb.Budget(
        spent_nanodollars=budget.spent_nanodollars,
        limit_nanodollars=budget.limit_nanodollars,
        exhausted=budget.exhausted,
        resets_at=_timestamp(budget.resets_at),
    )


def span(request: pb.GetUserCostsRequest) -> tuple[datetime | None, datetime | None]:
    """From when until when; None where it is left open."""
    begins, ends = request.HasField("begins_at"), request.HasField("ends_at")
    return (
        parse_timestamp("begins_at", request.begins_at) if begins else None,
        parse_timestamp("ends_at", request.ends_at) if ends else None,
    )


def _costs(costs: Costs) -> pb.Costs:
    return pb.Costs(**costs._asdict())


def _fill_limit(message: pb.Limit, limit: Limit) -> None:
    message.tier = limit.tier
    message.limit = limit.limit
    message.remaining = limit.remaining
    message.warning = limit.warning
    if limit.resets_at is not None:
        fill_timestamp(message.resets_at, limit.resets_at)


_KNOWN_ENDPOINTS = f"must be one of {', '.join(ENDPOINTS)}"
_SECOND = timedelta(seconds=1)


def _timestamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    message = Timestamp()
    fill_timestamp(message, moment)
    return message


def _page(page: pb.PageContext) -> tuple[str, int, str, str]:
    require(page.page >= 1, "page.page", "must be at least 1")
    mode = _MODES.get(page.effective_mode)
    require(mode is not None, "page.effective_mode", "must be set")
    assert mode is not None
    return (
        parse_pdf_hash("page.pdf_hash", page.pdf_hash),
        page.page,
        parse_text("page.locale", page.locale, most=16),
        mode,
    )


def _endpoint(endpoint: str) -> str:
    require(endpoint in ENDPOINTS, "endpoint", _KNOWN_ENDPOINTS)
    return endpoint


def _optional_uuid(field: str, value: str) -> UUID | None:
    return parse_uuid(field, value) if value else None


def _count(field: str, value: int, most: int) -> int:
    require(0 <= value <= most, field, f"must be 0 to {most}")
    return value


def _milliseconds(field: str, item: pb.Operation) -> int:
    try:
        duration = item.duration.ToTimedelta()
    except (ValueError, OverflowError):
        duration = -_SECOND
    require(timedelta(0) <= duration <= MAX_DURATION, field, "must be 0 to 24 hours")
    return round(duration / timedelta(milliseconds=1))
