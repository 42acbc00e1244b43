"""CacheService as gRPC sees it: check, call, render; decides nothing."""

import re
import time
from datetime import timedelta
from uuid import uuid4

from glossa.cache.v1 import cache_pb2 as pb
from glossa.cache.v1.cache_pb2_grpc import CacheServiceServicer
from glossa.quota.v1 import quota_pb2

from services.cache.canonical import response_key
from services.cache.clients import Limits
from services.cache.describe import DescribeRequest
from services.cache.domain import (
    DOCUMENT_MARKDOWN,
    INVALIDATED,
    LOCALES,
    PAGE_EXPLANATION,
    UNDETERMINED,
    Ask,
    Outcome,
    Selection,
)
from services.cache.explain import Answer, ExplainPage
from services.cache.inspect import InspectGeneration
from services.cache.invalidate import InvalidateGenerations
from services.cache.loss_store import LossStore
from services.cache.queue_store import QueueStore
from services.cache.refusals import Refused
from services.cache.response_store import ResponseStore
from services.cache.wire import (
    STATUSES,
    parse_struct,
    render_generation,
    render_losses,
    render_queue,
    render_story,
)
from services.runtime.auth import allow, current_caller, require_user
from services.runtime.interceptors import Context, answers_bytes
from services.runtime.validation import (
    parse_identity,
    parse_pdf_hash,
    parse_text,
    parse_uuid,
    require,
)

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
MOST_NAME = 128
DEFAULT_DAYS = 14
MOST_DAYS = 400
MOST_RESPONSE_BYTES = 1 << 20
DEFAULT_TTL = timedelta(hours=1)
MOST_TTL = timedelta(days=30)
# The tier that warns and never blocks.
SOFT_TIER = "soft"
_OUTCOMES = {one: quota_pb2.Outcome.Value(f"OUTCOME_{one.upper()}") for one in Outcome}


class CacheHandler(CacheServiceServicer):
    """Speaks protobuf for callers."""

    def __init__(
        self,
        *,
        explain: ExplainPage,
        inspect: InspectGeneration,
        describe: DescribeRequest,
        invalidate: InvalidateGenerations,
        responses: ResponseStore,
        queue: QueueStore,
        losses: LossStore,
    ) -> None:
        self._explain = explain
        self._inspect = inspect
        self._describe = describe
        self._invalidate = invalidate
        self._responses = responses
        self._queue = queue
        self._losses = losses

    @answers_bytes
    @allow("gateway", "admin", "user")
    async def ExplainPage(  # type: ignore[override]
        self, request: pb.ExplainPageRequest, context: Context
    ) -> bytes:
        answer = await self._answer(_ask_for_page(request), context)
        return _render_answer(pb.ExplainPageResponse(stale=answer.stale), answer)

    @answers_bytes
    @allow("gateway", "admin", "user")
    async def ConvertDocument(  # type: ignore[override]
        self, request: pb.ConvertDocumentRequest, context: Context
    ) -> bytes:
        answer = await self._answer(_ask_for_document(request), context)
        return _render_answer(pb.ConvertDocumentResponse(), answer)

    async def _answer(self, ask: Ask, context: Context) -> Answer:
        try:
            answer = await self._explain.explain(ask)
        except Refused as refusal:
            context.set_trailing_metadata(_rate_limit_headers(refusal.limits))
            raise
        context.set_trailing_metadata(_rate_limit_headers(answer.limits))
        return answer

    @allow("gateway", "worker", "admin", "user")
    async def GetGeneration(
        self, request: pb.GetGenerationRequest, context: Context
    ) -> pb.GetGenerationResponse:
        generation_id = parse_uuid("generation_id", request.generation_id)
        user_id = _reader(request.user_id)
        generation, queue = await self._inspect.read(generation_id, user_id)
        return pb.GetGenerationResponse(generation=render_generation(generation, queue))

    @allow("gateway", "admin", "user")
    async def DescribeRequest(
        self, request: pb.DescribeRequestRequest, context: Context
    ) -> pb.DescribeRequestResponse:
        request_id = parse_uuid("request_id", request.request_id)
        story = await self._describe.describe(request_id, _reader(request.user_id))
        return render_story(story)

    @allow("admin", "registry")
    async def InvalidateGenerations(
        self, request: pb.InvalidateGenerationsRequest, context: Context
    ) -> pb.InvalidateGenerationsResponse:
        chosen = _selection(request)
        reason = request.reason or INVALIDATED
        require(_REASON.fullmatch(reason) is not None, "reason", "must be UPPER_SNAKE, 64 at most")
        if request.dry_run:
            done = await self._invalidate.count(chosen)
        else:
            done = await self._invalidate.invalidate(chosen, reason)
        return pb.InvalidateGenerationsResponse(retired=done.retired, failed=done.failed)

    @allow("admin")
    async def DescribeQueue(
        self, request: pb.DescribeQueueRequest, context: Context
    ) -> pb.DescribeQueueResponse:
        return render_queue(await self._queue.describe())

    @allow("admin")
    async def ListLeaseLosses(
        self, request: pb.ListLeaseLossesRequest, context: Context
    ) -> pb.ListLeaseLossesResponse:
        days = request.days or DEFAULT_DAYS
        require(1 <= days <= MOST_DAYS, "days", f"must be 1 to {MOST_DAYS}")
        return render_losses(await self._losses.list_losses(days))

    @allow("gateway", "worker", "admin")
    async def LookupResponse(
        self, request: pb.LookupResponseRequest, context: Context
    ) -> pb.LookupResponseResponse:
        cache_key = _response_key(request)
        found = await self._responses.hit_response(cache_key)
        if found is None:
            return pb.LookupResponseResponse(cache_key=cache_key)
        answer = pb.LookupResponseResponse(
            hit=True, response=found.response, cache_key=cache_key, hit_count=found.hit_count
        )
        answer.expires_at.FromDatetime(found.expires_at)
        return answer

    @allow("gateway", "worker", "admin")
    async def StoreResponse(
        self, request: pb.StoreResponseRequest, context: Context
    ) -> pb.StoreResponseResponse:
        cache_key = _response_key(request)
        fits = len(request.response) <= MOST_RESPONSE_BYTES
        require(fits, "response", "must be at most 1 MiB")
        expires_at = await self._responses.store_response(
            cache_key,
            operation=request.operation,
            scope=request.scope,
            response=request.response,
            ttl=_ttl(request),
        )
        answer = pb.StoreResponseResponse(cache_key=cache_key)
        answer.expires_at.FromDatetime(expires_at)
        return answer

    @allow("gateway", "worker", "admin")
    async def InvalidateResponses(
        self, request: pb.InvalidateResponsesRequest, context: Context
    ) -> pb.InvalidateResponsesResponse:
        one_input = request.HasField("input")
        scope = request.scope if request.HasField("scope") else None
        cache_key = _response_key(request)
        deleted = await self._responses.delete_responses(
            request.operation,
            scope=None if one_input else scope,
            cache_key=cache_key if one_input else None,
        )
        return pb.InvalidateResponsesResponse(deleted=deleted)


def _ask_for_page(request: pb.ExplainPageRequest) -> Ask:
    require(request.page >= 1, "page", "must be at least 1")
    if request.locale not in LOCALES:
        require(False, "locale", f"must be one of {', '.join(LOCALES)}")
    return _ask(
        request,
        kind=PAGE_EXPLANATION,
        page=request.page,
        locale=request.locale,
        allow_stale=request.allow_stale,
    )


def _ask_for_document(request: pb.ConvertDocumentRequest) -> Ask:
    return _ask(request, kind=DOCUMENT_MARKDOWN, page=1, locale=UNDETERMINED, allow_stale=False)


def _ask(
    request: pb.ExplainPageRequest | pb.ConvertDocumentRequest,
    *,
    kind: str,
    page: int,
    locale: str,
    allow_stale: bool,
) -> Ask:
    """Who asks, and about which document."""
    user_id = parse_identity("user_id", request.user_id)
    require_user(user_id)
    target = request.WhichOneof("target")
    require(target is not None, "target", "needs a file_id or a pdf_hash")
    by_file = target == "file_id"
    id_is_new = not request.request_id
    return Ask(
        request_id=uuid4() if id_is_new else parse_uuid("request_id", request.request_id),
        id_is_new=id_is_new,
        user_id=user_id,
        file_id=parse_uuid("file_id", request.file_id) if by_file else None,
        pdf_hash=None if by_file else parse_pdf_hash("pdf_hash", request.pdf_hash),
        page=page,
        locale=locale,
        background=request.background,
        allow_stale=allow_stale,
        kind=kind,
        asked_at=time.perf_counter(),
    )


def _selection(request: pb.InvalidateGenerationsRequest) -> Selection:
    some = request.pdf_hash or request.prompt_version or request.kind
    require(bool(some), "pdf_hash", "or prompt_version or kind must be set: nothing selects all")
    require(request.page >= 0, "page", "must be at least 1, or 0 for every page")
    require(not request.page or bool(request.pdf_hash), "page", "needs a pdf_hash")
    return Selection(
        pdf_hash=parse_pdf_hash("pdf_hash", request.pdf_hash) if request.pdf_hash else None,
        page=request.page or None,
        prompt_version=_word("prompt_version", request.prompt_version),
        kind=_word("kind", request.kind),
    )


def _word(field: str, value: str) -> str | None:
    return parse_text(field, value, most=64) if value else None


def _response_key(
    request: pb.LookupResponseRequest | pb.StoreResponseRequest | pb.InvalidateResponsesRequest,
) -> str:
    parse_text("operation", request.operation, most=MOST_NAME)
    parse_text("scope", request.scope, least=0, most=MOST_NAME)
    return response_key(request.operation, parse_struct(request.input), request.scope)


def _ttl(request: pb.StoreResponseRequest) -> timedelta:
    if not request.HasField("ttl"):
        return DEFAULT_TTL
    seconds, nanos = request.ttl.seconds, request.ttl.nanos
    # Before it is made into one: parts that contradict each other make any time at all.
    is_duration = 0 <= nanos < 1_000_000_000
    in_range = seconds >= 1 and (seconds, nanos) <= (MOST_TTL.total_seconds(), 0)
    require(is_duration and in_range, "ttl", "must be 1 second to 30 days")
    return request.ttl.ToTimedelta()


def _reader(user_id: str) -> str | None:
    """Whose access is checked; only workers and admins may read for nobody in particular."""
    if not user_id and current_caller().scopes & {"worker", "admin"}:
        return None
    parse_identity("user_id", user_id)
    require_user(user_id)
    return user_id


def _render_answer(
    response: pb.ExplainPageResponse | pb.ConvertDocumentResponse, answer: Answer
) -> bytes:
    """The answer, with the result joined on as bytes: reading it in would cost more than all else.

    Parts of a message that are put one after the other are one message.
    """
    response.request_id = str(answer.request_id)
    response.generation_id = str(answer.generation_id)
    response.outcome = _OUTCOMES[answer.outcome]
    response.status = STATUSES[answer.status]
    response.receipt.units, response.receipt.remaining_units = answer.receipt
    response.limits.extend(answer.limits)
    response.queue_position = answer.queue.position
    response.model = answer.model
    if answer.queue.position:
        response.estimated_wait.FromTimedelta(answer.queue.estimated_wait)
    if answer.error is not None:
        response.error.reason, response.error.message = answer.error
    return response.SerializeToString() + answer.result


def _rate_limit_headers(limits: Limits) -> tuple[tuple[str, str], ...]:
    """The blocking window closest to being full, in the words gateways know, and any warning."""
    blocking = [limit for limit in limits if limit.tier != SOFT_TIER]
    if not blocking:
        return ()
    tightest = min(blocking, key=lambda limit: limit.remaining / limit.limit)
    headers = [
        ("x-ratelimit-limit", str(tightest.limit)),
        ("x-ratelimit-remaining", str(tightest.remaining)),
    ]
    if tightest.HasField("resets_at"):
        seconds = tightest.resets_at.seconds + (tightest.resets_at.nanos >= 500_000_000)
        headers.append(("x-ratelimit-reset", str(seconds)))
    headers += [("x-ratelimit-warning", limit.tier) for limit in limits if limit.warning]
    return tuple(headers)
