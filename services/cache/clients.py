"""Registry and Quota as the Cache sees them; deadlines and batching live here."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import grpc
from glossa.quota.v1 import quota_pb2
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceStub
from glossa.registry.v1 import registry_pb2
from glossa.registry.v1.registry_pb2_grpc import RegistryServiceStub
from glossa.worker.v1 import worker_pb2
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceStub

from services.cache.domain import (
    DOCUMENT_MARKDOWN,
    PAGE_EXPLANATION,
    SHARED_SCOPE,
    Ask,
    Outcome,
    Refund,
    ResolvedPage,
)
from services.cache.samples import Groups
from services.runtime.batching import Batcher
from services.runtime.channel import calling
from services.runtime.errors import RelayedError
from services.runtime.settings import CONTEXT_NEIGHBOURS

# Page metadata is detected on first use, by a child process that may have to start.
RESOLVE_SECONDS = 15.0
# A stream without a natural end; a new one each day keeps balancers and tokens fresh.
WATCH_SECONDS = 24 * 3600.0
ADMIT_SECONDS = 3.0
# A refusal lets an intent vanish, so no copy of the charge may arrive after it.
SENT_ONCE = ("glossa.quota.v1.QuotaService/AdmitMany",)
REFUND_SECONDS = 5.0
CHARGE_SECONDS = 2.0
SAMPLES_SECONDS = 5.0

_MODES = {
    registry_pb2.EFFECTIVE_MODE_TEXT_ONLY: "text_only",
    registry_pb2.EFFECTIVE_MODE_WITH_IMAGES: "with_images",
}
_MODE_VALUES = {name: value for value, name in _MODES.items()}
_ENDPOINTS = {PAGE_EXPLANATION: "explain_page", DOCUMENT_MARKDOWN: "convert_document"}
_OUTCOMES = {
    quota_pb2.OUTCOME_GENERATED: Outcome.GENERATED,
    quota_pb2.OUTCOME_JOINED: Outcome.JOINED,
    quota_pb2.OUTCOME_CACHED: Outcome.CACHED,
}
_OUTCOME_VALUES = {outcome: value for value, outcome in _OUTCOMES.items()}


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


# The windows of a user as Quota describes them, passed on as they came.
Limits = Sequence[quota_pb2.Limit]


class Receipt(NamedTuple):
    units: int = 0
    remaining_units: int = 0


class Admission(NamedTuple):
    """Quota's decision about one request."""

    decision: Decision
    receipt: Receipt = Receipt()
    limits: Limits = ()
    retry_after: timedelta | None = None
    outcome: Outcome | None = None
    generation_id: UUID | None = None
    shares: bool = True


_DECISIONS = {quota_pb2.Decision.Value(f"DECISION_{one.upper()}"): one for one in Decision}


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What the ledger says about one request."""

    units: int
    outcome: Outcome | None
    generation_id: UUID | None
    refunded: bool


class RegistryClient:
    """Asks who may see which page, and what is on it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = RegistryServiceStub(channel)

    async def resolve_page(self, ask: Ask) -> ResolvedPage:
        request = registry_pb2.ResolvePageRequest(
            owner=registry_pb2.Owner(user_id=ask.user_id),
            page=ask.page,
            neighbours=CONTEXT_NEIGHBOURS,
        )
        if ask.file_id is not None:
            request.file_id = str(ask.file_id)
        else:
            request.pdf_hash = ask.pdf_hash or ""
        with calling("registry"):
            page = await self._stub.ResolvePage(request, timeout=RESOLVE_SECONDS)
        return ResolvedPage(
            pdf_hash=page.pdf_hash,
            page=page.page,
            effective_mode=_MODES[page.effective_mode],
            images_count=page.images_count,
            context_fingerprint=page.context_fingerprint,
        )

    async def watch_revocations(self) -> AsyncIterator[Sequence[str]]:
        """Documents that lose a reference, as it happens; empty while nothing does."""
        request = registry_pb2.WatchRevocationsRequest()
        call = self._stub.WatchRevocations(request, timeout=WATCH_SECONDS)
        try:
            with calling("registry"):
                async for message in call:
                    yield message.pdf_hashes
        finally:
            call.cancel()


class WorkerClient:
    """Who keeps the metrics."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = WorkerServiceStub(channel)

    async def record_samples(self, batch_id: UUID, groups: Groups) -> None:
        """Tell how long requests took; repeating a batch changes nothing."""
        request = worker_pb2.RecordSamplesRequest(batch_id=str(batch_id))
        for key, (latencies, ages) in groups.items():
            request.groups.add(
                kind=key.kind,
                pdf_hash=key.pdf_hash,
                page=key.page,
                locale=key.locale,
                effective_mode=_MODE_VALUES[key.effective_mode],
                outcome=quota_pb2.Outcome.Value(f"OUTCOME_{key.outcome.upper()}"),
                images_count=key.images_count,
                chunks=key.chunks,
                latency_ms=latencies,
                age_ms=ages,
            )
        with calling("worker"):
            await self._stub.RecordSamples(request, timeout=SAMPLES_SECONDS)


class QuotaClient:
    """Charges and refunds; calls that come while one is under way travel together."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = QuotaServiceStub(channel)
        self._admissions = Batcher(self._admit_many)
        self._refunds = Batcher(self.refund_many)

    async def admit(
        self,
        ask: Ask,
        page: ResolvedPage,
        *,
        scope: str,
        outcome: Outcome,
        generation_id: UUID | None,
    ) -> Admission:
        """Charge for an outcome in a scope; Quota refuses if the user wants the other scope."""
        return await self._admissions.submit(
            quota_pb2.AdmitRequest(
                request_id=str(ask.request_id),
                user_id=ask.user_id,
                endpoint=_ENDPOINTS[ask.kind],
                outcome=_OUTCOME_VALUES[outcome],
                generation_id=str(generation_id) if generation_id else "",
                page=quota_pb2.PageContext(
                    pdf_hash=page.pdf_hash,
                    page=page.page,
                    locale=ask.locale,
                    effective_mode=_MODE_VALUES[page.effective_mode],
                ),
                expected_share_to_cache=scope == SHARED_SCOPE,
            )
        )

    async def refund(self, refund: Refund) -> Receipt:
        return await self._refunds.submit(refund)

    async def refund_many(self, refunds: Sequence[Refund]) -> list[Receipt]:
        """Deliver refunds; repeating it changes nothing."""
        request = quota_pb2.RefundRequest(items=[_refund_item(refund) for refund in refunds])
        with calling("quota"):
            response = await self._stub.Refund(request, timeout=REFUND_SECONDS)
        return [_receipt(item.receipt) for item in response.items]

    async def read_charge(self, request_id: UUID, user_id: str) -> Charge | None:
        """What was charged for a request of this user; None when nothing was."""
        request = quota_pb2.GetChargeRequest(user_id=user_id, request_id=str(request_id))
        try:
            with calling("quota"):
                response = await self._stub.GetCharge(request, timeout=CHARGE_SECONDS)
        except RelayedError as error:
            if error.code == "NOT_FOUND":
                return None
            raise
        charge = response.charge
        return Charge(
            units=charge.units,
            outcome=_OUTCOMES.get(charge.outcome),
            generation_id=UUID(charge.generation_id) if charge.generation_id else None,
            refunded=charge.HasField("refunded_at"),
        )

    async def _admit_many(self, requests: Sequence[quota_pb2.AdmitRequest]) -> list[Admission]:
        with calling("quota"):
            response = await self._stub.AdmitMany(
                quota_pb2.AdmitManyRequest(requests=requests), timeout=ADMIT_SECONDS
            )
        return [_admission(item) for item in response.responses]


def _refund_item(refund: Refund) -> quota_pb2.RefundRequest.Item:
    item = quota_pb2.RefundRequest.Item(
        request_id=str(refund.request_id),
        user_id=refund.user_id,
        reason=quota_pb2.RefundReason.Value(f"REFUND_REASON_{refund.reason.upper()}"),
        generation_id=str(refund.generation_id) if refund.generation_id else "",
    )
    if refund.served_as is not None:
        item.served_as = quota_pb2.Outcome.Value(f"OUTCOME_{refund.served_as.upper()}")
    return item


def _admission(response: quota_pb2.AdmitResponse) -> Admission:
    return Admission(
        decision=_DECISIONS[response.decision],
        receipt=_receipt(response.receipt),
        limits=response.limits,
        retry_after=(
            response.retry_after.ToTimedelta() if response.HasField("retry_after") else None
        ),
        outcome=_OUTCOMES.get(response.outcome),
        generation_id=UUID(response.generation_id) if response.generation_id else None,
        shares=response.share_to_cache,
    )


def _receipt(receipt: quota_pb2.Receipt) -> Receipt:
    return Receipt(receipt.units, receipt.remaining_units)
