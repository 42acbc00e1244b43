"""CacheService as gRPC sees it: check, call, render; decides nothing."""

from uuid import uuid4

from glossa.cache.v1 import cache_pb2 as pb
from glossa.cache.v1.cache_pb2_grpc import CacheServiceServicer
from glossa.quota.v1 import quota_pb2

from services.cache.clients import Limit
from services.cache.domain import LOCALES, Ask, Status
from services.cache.explain import Answer, ExplainPage
from services.cache.inspect import InspectGeneration
from services.cache.refusals import Refused
from services.cache.wire import STATUSES, render_error, render_generation, render_sticker
from services.runtime.auth import allow, current_caller, require_user
from services.runtime.interceptors import Context
from services.runtime.validation import parse_identity, parse_pdf_hash, parse_uuid, require

# The tier that warns and never blocks.
SOFT_TIER = "soft"


class CacheHandler(CacheServiceServicer):
    """Speaks protobuf for callers."""

    def __init__(self, explain: ExplainPage, inspect: InspectGeneration) -> None:
        self._explain = explain
        self._inspect = inspect

    @allow("gateway", "admin", "user")
    async def ExplainPage(
        self, request: pb.ExplainPageRequest, context: Context
    ) -> pb.ExplainPageResponse:
        try:
            answer = await self._explain.explain(_ask(request))
        except Refused as refusal:
            context.set_trailing_metadata(_rate_limit_headers(refusal.limits))
            raise
        context.set_trailing_metadata(_rate_limit_headers(answer.limits))
        return _explain_response(answer)

    @allow("gateway", "worker", "admin", "user")
    async def GetGeneration(
        self, request: pb.GetGenerationRequest, context: Context
    ) -> pb.GetGenerationResponse:
        generation_id = parse_uuid("generation_id", request.generation_id)
        user_id = _reader(request.user_id)
        generation, queue = await self._inspect.read(generation_id, user_id)
        return pb.GetGenerationResponse(generation=render_generation(generation, queue))

    @allow("admin", "registry")
    async def InvalidateGenerations(
        self, request: pb.InvalidateGenerationsRequest, context: Context
    ) -> pb.InvalidateGenerationsResponse:
        raise NotImplementedError


def _ask(request: pb.ExplainPageRequest) -> Ask:
    user_id = parse_identity("user_id", request.user_id)
    require_user(user_id)
    target = request.WhichOneof("target")
    require(target is not None, "target", "needs a file_id or a pdf_hash")
    require(request.page >= 1, "page", "must be at least 1")
    require(request.locale in LOCALES, "locale", f"must be one of {', '.join(LOCALES)}")
    by_file = target == "file_id"
    return Ask(
        request_id=parse_uuid("request_id", request.request_id) if request.request_id else uuid4(),
        user_id=user_id,
        file_id=parse_uuid("file_id", request.file_id) if by_file else None,
        pdf_hash=None if by_file else parse_pdf_hash("pdf_hash", request.pdf_hash),
        page=request.page,
        locale=request.locale,
    )


def _reader(user_id: str) -> str | None:
    """Whose access is checked; only workers and admins may read for nobody in particular."""
    if not user_id and current_caller().scopes & {"worker", "admin"}:
        return None
    parse_identity("user_id", user_id)
    require_user(user_id)
    return user_id


def _explain_response(answer: Answer) -> pb.ExplainPageResponse:
    generation = answer.generation
    response = pb.ExplainPageResponse(
        request_id=str(answer.request_id),
        generation_id=str(generation.generation_id),
        outcome=quota_pb2.Outcome.Value(f"OUTCOME_{answer.outcome.upper()}"),
        status=STATUSES[generation.status],
        stickers=[render_sticker(sticker) for sticker in generation.stickers],
        receipt=quota_pb2.Receipt(
            units=answer.receipt.units, remaining_units=answer.receipt.remaining_units
        ),
        limits=[_limit(limit) for limit in answer.limits],
        queue_position=answer.queue.position,
        model=generation.key.model,
    )
    if answer.queue.position:
        response.estimated_wait.FromTimedelta(answer.queue.estimated_wait)
    if generation.status is Status.FAILED:
        response.error.CopyFrom(render_error(generation))
    return response


def _limit(limit: Limit) -> quota_pb2.Limit:
    message = quota_pb2.Limit(
        tier=limit.tier, limit=limit.limit, remaining=limit.remaining, warning=limit.warning
    )
    if limit.resets_at is not None:
        message.resets_at.FromDatetime(limit.resets_at)
    return message


def _rate_limit_headers(limits: tuple[Limit, ...]) -> tuple[tuple[str, str], ...]:
    """The blocking window closest to being full, in the words gateways know, and any warning."""
    blocking = [limit for limit in limits if limit.tier != SOFT_TIER]
    if not blocking:
        return ()
    tightest = min(blocking, key=lambda limit: limit.remaining / limit.limit)
    headers = [
        ("x-ratelimit-limit", str(tightest.limit)),
        ("x-ratelimit-remaining", str(tightest.remaining)),
    ]
    if tightest.resets_at is not None:
        headers.append(("x-ratelimit-reset", str(round(tightest.resets_at.timestamp()))))
    headers += [("x-ratelimit-warning", limit.tier) for limit in limits if limit.warning]
    return tuple(headers)
