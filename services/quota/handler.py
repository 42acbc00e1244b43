"""QuotaService as gRPC sees it: check, call, render; decides nothing."""

from typing import TypeVar

from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceServicer
from glossa.registry.v1 import registry_pb2

from services.quota import domain
from services.quota.domain import AdmitRequest, Answer, Decision, Outcome, Purchase, Refund
from services.quota.store import QuotaStore
from services.runtime.auth import allow, require_user
from services.runtime.errors import AlreadyExists
from services.runtime.interceptors import Context
from services.runtime.validation import (
    parse_identity,
    parse_pdf_hash,
    parse_text,
    parse_uuid,
    require,
)

MAX_BATCH = 1000
ENDPOINTS = frozenset({"explain_page"})

_OUTCOMES = {
    pb.OUTCOME_GENERATED: Outcome.GENERATED,
    pb.OUTCOME_JOINED: Outcome.JOINED,
    pb.OUTCOME_CACHED: Outcome.CACHED,
}
_REASONS = {
    pb.REFUND_REASON_GENERATION_FAILED: domain.RefundReason.GENERATION_FAILED,
    pb.REFUND_REASON_REQUEST_ABORTED: domain.RefundReason.REQUEST_ABORTED,
    pb.REFUND_REASON_REPRICED: domain.RefundReason.REPRICED,
    pb.REFUND_REASON_GOODWILL: domain.RefundReason.GOODWILL,
}
_MODES = {
    registry_pb2.EFFECTIVE_MODE_TEXT_ONLY: "text_only",
    registry_pb2.EFFECTIVE_MODE_WITH_IMAGES: "with_images",
}


class RequestIdReused(AlreadyExists):
    """The request_id was charged for another user, endpoint or page."""

    reason = "REQUEST_ID_REUSED"


class QuotaHandler(QuotaServiceServicer):
    """Speaks protobuf for the ledger."""

    def __init__(self, store: QuotaStore) -> None:
        self._store = store

    @allow("cache", "admin")
    async def Admit(self, request: pb.AdmitRequest, context: Context) -> pb.AdmitResponse:
        [answer] = await self._store.admit_many([_admit_request(request, "")])
        if answer.decision is Decision.REQUEST_ID_REUSED:
            raise RequestIdReused(
                "request_id was used for something else; use a new one", field="request_id"
            )
        return _admit_response(answer)

    @allow("cache", "admin")
    async def AdmitMany(
        self, request: pb.AdmitManyRequest, context: Context
    ) -> pb.AdmitManyResponse:
        _require_batch(len(request.requests), "requests")
        wanted = [
            _admit_request(item, f"requests[{index}].")
            for index, item in enumerate(request.requests)
        ]
        answers = await self._store.admit_many(wanted)
        return pb.AdmitManyResponse(responses=[_admit_response(answer) for answer in answers])

    @allow("cache", "admin")
    async def Refund(self, request: pb.RefundRequest, context: Context) -> pb.RefundResponse:
        _require_batch(len(request.items), "items")
        refunds = [_refund(item, f"items[{index}].") for index, item in enumerate(request.items)]
        settled = await self._store.refund(refunds)
        return pb.RefundResponse(items=[_refunded(item) for item in settled])

    @allow("gateway", "cache", "admin", "user")
    async def GetQuotaStatus(
        self, request: pb.GetQuotaStatusRequest, context: Context
    ) -> pb.GetQuotaStatusResponse:
        user_id = _own_user(request.user_id)
        limits, units, period_ends_at = await self._store.read_status(user_id, "explain_page")
        response = pb.GetQuotaStatusResponse(
            tiers=[_tier_status(limit) for limit in limits], remaining_units=units
        )
        response.period_ends_at.FromDatetime(period_ends_at)
        return response

    @allow("gateway", "cache", "admin", "user")
    async def GetPreferences(
        self, request: pb.GetPreferencesRequest, context: Context
    ) -> pb.GetPreferencesResponse:
        user_id = _own_user(request.user_id)
        preferences = await self._store.read_preferences(user_id)
        return pb.GetPreferencesResponse(preferences=_preferences(preferences))

    @allow("gateway", "admin", "user")
    async def UpdatePreferences(
        self, request: pb.UpdatePreferencesRequest, context: Context
    ) -> pb.UpdatePreferencesResponse:
        user_id = _own_user(request.user_id)
        chosen = request.share_to_cache if request.HasField("share_to_cache") else None
        preferences = await self._store.update_preferences(user_id, share_to_cache=chosen)
        return pb.UpdatePreferencesResponse(preferences=_preferences(preferences))


def _own_user(given: str) -> str:
    user_id = parse_identity("user_id", given)
    require_user(user_id)
    return user_id


def _require_batch(size: int, field: str) -> None:
    require(0 < size <= MAX_BATCH, field, f"must hold 1 to {MAX_BATCH} items")


def _admit_request(item: pb.AdmitRequest, at: str) -> AdmitRequest:
    require(item.outcome in _OUTCOMES, f"{at}outcome", "must be generated, joined or cached")
    generation = item.generation_id
    return AdmitRequest(
        request_id=parse_uuid(f"{at}request_id", item.request_id),
        purchase=_purchase(item, at),
        outcome=_OUTCOMES[item.outcome],
        generation_id=parse_uuid(f"{at}generation_id", generation) if generation else None,
        expected_share_to_cache=(
            item.expected_share_to_cache if item.HasField("expected_share_to_cache") else None
        ),
    )


def _purchase(item: pb.AdmitRequest, at: str) -> Purchase:
    known = ", ".join(sorted(ENDPOINTS))
    require(item.endpoint in ENDPOINTS, f"{at}endpoint", f"must be one of {known}")
    require(item.page.page >= 1, f"{at}page.page", "must be at least 1")
    require(item.page.effective_mode in _MODES, f"{at}page.effective_mode", "must be set")
    return Purchase(
        user_id=parse_identity(f"{at}user_id", item.user_id),
        endpoint=item.endpoint,
        pdf_hash=parse_pdf_hash(f"{at}page.pdf_hash", item.page.pdf_hash),
        page=item.page.page,
        locale=parse_text(f"{at}page.locale", item.page.locale, most=16),
        effective_mode=_MODES[item.page.effective_mode],
    )


def _refund(item: pb.RefundRequest.Item, at: str) -> Refund:
    require(item.reason in _REASONS, f"{at}reason", "must be set")
    reason = _REASONS[item.reason]
    repriced = reason is domain.RefundReason.REPRICED
    known = item.served_as in _OUTCOMES
    require(known or not repriced, f"{at}served_as", "must be set to reprice")
    generation = item.generation_id
    return Refund(
        request_id=parse_uuid(f"{at}request_id", item.request_id),
        user_id=parse_identity(f"{at}user_id", item.user_id),
        reason=reason,
        served_as=_OUTCOMES[item.served_as] if repriced else None,
        generation_id=parse_uuid(f"{at}generation_id", generation) if generation else None,
    )


def _refunded(settled: domain.Settled) -> pb.RefundResponse.Item:
    return pb.RefundResponse.Item(
        result=pb.RefundResult.Value(f"REFUND_RESULT_{settled.result.upper()}"),
        receipt=pb.Receipt(units=settled.units, remaining_units=settled.book.balance_units),
    )


def _admit_response(answer: Answer) -> pb.AdmitResponse:
    response = pb.AdmitResponse(
        decision=pb.Decision.Value(f"DECISION_{answer.decision.upper()}"),
        receipt=pb.Receipt(units=answer.units, remaining_units=answer.remaining_units),
        limits=[_limit(limit) for limit in answer.limits],
        share_to_cache=answer.share_to_cache,
    )
    if answer.retry_after is not None:
        response.retry_after.FromTimedelta(answer.retry_after)
    if answer.outcome is not None:
        response.outcome = pb.Outcome.Value(f"OUTCOME_{answer.outcome.upper()}")
    if answer.generation_id is not None:
        response.generation_id = str(answer.generation_id)
    return response


def _preferences(preferences: domain.Preferences) -> pb.Preferences:
    message = pb.Preferences(share_to_cache=preferences.share_to_cache)
    if preferences.updated_at is not None:
        message.updated_at.FromDatetime(preferences.updated_at)
    return message


def _limit(limit: domain.Limit) -> pb.Limit:
    return _with_reset(
        pb.Limit(
            tier=limit.tier.name,
            limit=limit.tier.limit,
            remaining=limit.remaining,
            warning=limit.warning,
        ),
        limit,
    )


def _tier_status(limit: domain.Limit) -> pb.TierStatus:
    return _with_reset(
        pb.TierStatus(
            tier=limit.tier.name,
            limit=limit.tier.limit,
            used=limit.used,
            remaining=limit.remaining,
        ),
        limit,
    )


_Windowed = TypeVar("_Windowed", pb.Limit, pb.TierStatus)


def _with_reset(message: _Windowed, limit: domain.Limit) -> _Windowed:
    if limit.resets_at is not None:
        message.resets_at.FromDatetime(limit.resets_at)
    return message
