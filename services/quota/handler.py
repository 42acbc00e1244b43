"""QuotaService as gRPC sees it: check, call, render; decides nothing."""

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid4

from glossa.quota.v1 import quota_pb2 as pb
from glossa.quota.v1.quota_pb2_grpc import QuotaServiceServicer
from google.protobuf.duration_pb2 import Duration

from services.quota import wire
from services.quota.cost_store import CostStore
from services.quota.domain import Decision, Operation
from services.quota.gate import Gate
from services.quota.ledger_store import LedgerStore
from services.quota.metrics import count_answers, count_refunds
from services.quota.store import QuotaStore, RequestIdReused
from services.quota.totals_store import TotalsStore
from services.runtime.auth import NotYourUser, allow, current_caller, require_user
from services.runtime.errors import DependencyDown, InvalidInput, NotFound
from services.runtime.interceptors import Context
from services.runtime.validation import (
    parse_each,
    parse_identity,
    parse_pdf_hash,
    parse_text,
    parse_uuid,
    require,
)

MAX_BATCH = 1000
DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000
LONGEST_SPAN = timedelta(days=400)
# Tells gRPC's own retries to leave it: the circuit decides when asking again makes sense.
NO_RETRY = (("grpc-retry-pushback-ms", "-1"),)

_Result = TypeVar("_Result")


class UnknownModel(InvalidInput):
    """There is no price for the model; a default would be wrong."""

    reason = "UNKNOWN_MODEL"


class ChargeNotFound(NotFound):
    """Nothing was charged under this request_id, as far as this user may know."""

    reason = "CHARGE_NOT_FOUND"


class QuotaHandler(QuotaServiceServicer):
    """Speaks protobuf for the ledger."""

    def __init__(
        self,
        *,
        store: QuotaStore,
        ledger: LedgerStore,
        costs: CostStore,
        totals: TotalsStore,
        gate: Gate,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._costs = costs
        self._totals = totals
        self._gate = gate

    @allow("cache", "admin")
    async def Admit(self, request: pb.AdmitRequest, context: Context) -> pb.AdmitResponse:
        wanted = wire.admit_request(request)
        [answer] = await self._ask(context, self._store.admit_many([wanted]))
        count_answers([answer])
        if answer.decision == Decision.REQUEST_ID_REUSED:
            raise RequestIdReused(
                "request_id was used for something else; use a new one", field="request_id"
            )
        response = pb.AdmitResponse()
        wire.fill_admit_response(response, answer)
        return response

    @allow("cache", "admin")
    async def AdmitMany(
        self, request: pb.AdmitManyRequest, context: Context
    ) -> pb.AdmitManyResponse:
        _require_batch(len(request.requests), "requests")
        wanted = parse_each("requests", request.requests, wire.admit_request)
        answers = await self._ask(context, self._store.admit_many(wanted))
        count_answers(answers)
        return wire.admit_responses(answers)

    @allow("cache", "admin")
    async def Refund(self, request: pb.RefundRequest, context: Context) -> pb.RefundResponse:
        if request.generation_id:
            generation_id, reason = wire.generation_refund(request)
            pairs = await self._ask(context, self._store.refund_generation(generation_id, reason))
        else:
            _require_batch(len(request.items), "items")
            refunds = parse_each("items", request.items, wire.refund)
            settled = await self._ask(context, self._store.settle_refunds(refunds))
            pairs = list(zip(refunds, settled, strict=True))
        count_refunds(pairs)
        return pb.RefundResponse(items=[wire.refunded(item, told) for item, told in pairs])

    @allow("gateway", "cache", "admin", "user")
    async def GetQuotaStatus(
        self, request: pb.GetQuotaStatusRequest, context: Context
    ) -> pb.GetQuotaStatusResponse:
        user_id = _own_user(request.user_id)
        try:
            status = await self._gate.through(self._store.read_status(user_id, "explain_page"))
        except DependencyDown as error:
            wait = Duration()
            wait.FromTimedelta(error.retry_after or timedelta(seconds=1))
            return pb.GetQuotaStatusResponse(degraded=True, retry_after=wait)
        return wire.quota_status(status)

    @allow("admin")
    async def ResetQuota(
        self, request: pb.ResetQuotaRequest, context: Context
    ) -> pb.ResetQuotaResponse:
        given = request.request_id
        request_id: UUID = parse_uuid("request_id", given) if given else uuid4()
        units = await self._ask(
            context,
            self._store.reset_quota(
                parse_identity("user_id", request.user_id),
                request_id=request_id,
                reason=parse_text("reason", request.reason, most=200),
                clear_windows=request.clear_windows,
            ),
        )
        return pb.ResetQuotaResponse(request_id=str(request_id), remaining_units=units)

    @allow("gateway", "admin", "user")
    async def ListLedger(
        self, request: pb.ListLedgerRequest, context: Context
    ) -> pb.ListLedgerResponse:
        user_id = _own_user(request.user_id)
        size = request.page_size or DEFAULT_PAGE_SIZE
        require(0 < size <= MAX_PAGE_SIZE, "page_size", f"must be 1 to {MAX_PAGE_SIZE}")
        before = wire.parse_page_token(request.page_token)
        # One more than asked tells whether there is a next page.
        lines = await self._ask(
            context, self._ledger.list_ledger(user_id, before=before, most=size + 1)
        )
        page = lines[:size]
        return pb.ListLedgerResponse(
            entries=[wire.ledger_entry(line) for line in page],
            next_page_token=wire.page_token(page[-1].entry_id) if len(lines) > size else "",
        )

    @allow("cache", "gateway", "admin", "user")
    async def GetCharge(
        self, request: pb.GetChargeRequest, context: Context
    ) -> pb.GetChargeResponse:
        user_id = _own_user(request.user_id)
        request_id = parse_uuid("request_id", request.request_id)
        charge = await self._ask(context, self._ledger.read_charge(user_id, request_id))
        if charge is None:
            raise ChargeNotFound("nothing was charged to this user under this request_id")
        return pb.GetChargeResponse(charge=wire.charge(charge))

    @allow("worker", "admin")
    async def RecordOperations(
        self, request: pb.RecordOperationsRequest, context: Context
    ) -> pb.RecordOperationsResponse:
        _require_batch(len(request.operations), "operations")
        operations = parse_each("operations", request.operations, wire.operation)
        await self._require_prices(context, operations)
        costs = await self._ask(context, self._costs.record_operations(operations))
        return pb.RecordOperationsResponse(cost_nanodollars=costs)

    @allow("gateway", "admin", "user")
    async def GetUserCosts(
        self, request: pb.GetUserCostsRequest, context: Context
    ) -> pb.GetUserCostsResponse:
        user_id = _own_user(request.user_id) if request.user_id else None
        if user_id is None and current_caller().is_user:
            raise NotYourUser("this token acts only for its own user; name it", field="user_id")
        begins_at, ends_at = wire.span(request)
        require(ends_at is None or begins_at is not None, "begins_at", "must be set with ends_at")
        if begins_at is not None:
            span = (ends_at or datetime.now(UTC)) - begins_at
            field = "ends_at" if ends_at else "begins_at"
            require(timedelta(0) < span <= LONGEST_SPAN, field, "must make up to 400 days")
        report = await self._ask(context, self._costs.read_costs(user_id, begins_at, ends_at))
        return wire.cost_report(report)

    @allow("admin")
    async def ListDailyTotals(
        self, request: pb.ListDailyTotalsRequest, context: Context
    ) -> pb.ListDailyTotalsResponse:
        # Not through the gate: a slow look at the past must not stop anybody's charge.
        return wire.daily_totals(await self._totals.list_daily_totals(*wire.day_span(request)))

    @allow("worker", "admin")
    async def GetGenerationCosts(
        self, request: pb.GetGenerationCostsRequest, context: Context
    ) -> pb.GetGenerationCostsResponse:
        few = len(request.generation_ids) <= MAX_BATCH
        require(few, "generation_ids", f"must hold at most {MAX_BATCH} items")
        wanted = [
            parse_uuid(f"generation_ids[{index}]", item)
            for index, item in enumerate(request.generation_ids)
        ]
        costs = await self._ask(context, self._costs.read_generation_costs(wanted))
        budgets = await self._ask(context, self._costs.read_budgets("", ""))
        return pb.GetGenerationCostsResponse(
            cost_nanodollars=costs, day=wire.budget_message(budgets.day)
        )

    @allow("gateway", "admin", "user")
    async def CheckBudget(
        self, request: pb.CheckBudgetRequest, context: Context
    ) -> pb.CheckBudgetResponse:
        user_id = _own_user(request.user_id)
        pdf_hash = parse_pdf_hash("pdf_hash", request.pdf_hash) if request.pdf_hash else ""
        budgets = await self._ask(context, self._costs.read_budgets(user_id, pdf_hash))
        response = pb.CheckBudgetResponse(user=wire.budget_message(budgets.user))
        # What everybody spends is no user's business.
        if not current_caller().is_user:
            response.day.CopyFrom(wire.budget_message(budgets.day))
            if pdf_hash:
                response.document.CopyFrom(wire.budget_message(budgets.document))
        return response

    @allow("gateway", "cache", "admin", "user")
    async def GetPreferences(
        self, request: pb.GetPreferencesRequest, context: Context
    ) -> pb.GetPreferencesResponse:
        user_id = _own_user(request.user_id)
        preferences = await self._ask(context, self._store.read_preferences(user_id))
        return pb.GetPreferencesResponse(preferences=wire.preferences_message(preferences))

    @allow("gateway", "admin", "user")
    async def UpdatePreferences(
        self, request: pb.UpdatePreferencesRequest, context: Context
    ) -> pb.UpdatePreferencesResponse:
        user_id = _own_user(request.user_id)
        chosen = request.share_to_cache if request.HasField("share_to_cache") else None
        preferences = await self._ask(
            context, self._store.update_preferences(user_id, share_to_cache=chosen)
        )
        return pb.UpdatePreferencesResponse(preferences=wire.preferences_message(preferences))

    async def _ask(self, context: Context, call: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return await self._gate.through(call)
        except DependencyDown:
            context.set_trailing_metadata(NO_RETRY)
            raise

    async def _require_prices(self, context: Context, operations: list[Operation]) -> None:
        models = sorted({operation.model for operation in operations})
        unpriced = await self._ask(context, self._costs.find_unpriced(models))
        for index, operation in enumerate(operations):
            if operation.model in unpriced:
                raise UnknownModel(
                    f"there is no price for the model {operation.model!r}: add one to"
                    " quota.model_prices; nothing was recorded",
                    field=f"operations[{index}].model",
                )


def _own_user(given: str) -> str:
    user_id = parse_identity("user_id", given)
    require_user(user_id)
    return user_id


def _require_batch(size: int, field: str) -> None:
    require(0 < size <= MAX_BATCH, field, f"must hold 1 to {MAX_BATCH} items")
