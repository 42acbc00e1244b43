"""Generations and stickers as protobuf and back; shared by the two handlers of this service."""

from collections.abc import Iterable, Sequence
from typing import Any

from glossa.cache.v1 import cache_pb2 as pb
from glossa.cache.v1 import jobs_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from google.protobuf import struct_pb2

from services.cache.describe import Story
from services.cache.domain import (
    DOCUMENT_MARKDOWN,
    SHARED_SCOPE,
    AttemptFailure,
    Generation,
    Queue,
    RequestRecord,
    Status,
)
from services.cache.job_domain import DayOfLosses, Loss, QueueReport
from services.runtime.validation import parse_each, parse_text, require

MAX_STICKERS = 50
MAX_TITLE = 300
MAX_BODY = 20_000
MAX_QUOTE = 2_000
# With what else is in a message it stays below the 4 MiB that gRPC takes.
MAX_MARKDOWN_BYTES = 3 << 20

STATUSES = {
    Status.GENERATING: pb.GENERATION_STATUS_GENERATING,
    Status.READY: pb.GENERATION_STATUS_READY,
    Status.FAILED: pb.GENERATION_STATUS_FAILED,
}
_KINDS = frozenset(pb.StickerKind.values()) - {pb.STICKER_KIND_UNSPECIFIED}
MODES = {
    "text_only": registry_pb2.EFFECTIVE_MODE_TEXT_ONLY,
    "with_images": registry_pb2.EFFECTIVE_MODE_WITH_IMAGES,
}


def render_generation(generation: Generation, queue: Queue) -> pb.Generation:
    message = pb.Generation(
        generation_id=str(generation.generation_id),
        status=STATUSES[generation.status],
        stage=pb.Stage.Value(f"STAGE_{generation.stage.upper()}"),
        attempts=generation.attempts,
        stickers=_stickers(generation),
        prompt_version=generation.key.prompt_version,
        model=generation.key.model,
        locale=generation.key.locale,
        effective_mode=MODES[generation.key.effective_mode],
        done=generation.done,
        total=generation.total,
        queue_position=queue.position,
        kind=generation.key.kind,
        markdown=_markdown(generation),
    )
    message.created_at.FromDatetime(generation.created_at)
    if generation.completed_at is not None:
        message.completed_at.FromDatetime(generation.completed_at)
    if queue.position:
        message.estimated_wait.FromTimedelta(queue.estimated_wait)
    if generation.status is Status.FAILED:
        message.error.CopyFrom(render_error(generation))
    return message


def render_story(story: Story) -> pb.DescribeRequestResponse:
    message = pb.DescribeRequestResponse(
        request_id=str(story.request_id),
        user_id=story.user_id,
        state=pb.RequestState.Value(f"REQUEST_STATE_{story.state.upper()}"),
        units=story.units,
        charge_known=story.charge_known,
        failures=[render_failure(failure) for failure in story.failures],
        story=story.sentences(),
    )
    if story.outcome is not None:
        message.outcome = quota_pb2.Outcome.Value(f"OUTCOME_{story.outcome.upper()}")
    if story.generation is not None:
        message.pdf_hash, message.page = story.generation.key.pdf_hash, story.generation.key.page
        message.locale, message.private = story.generation.key.locale, story.generation.is_private
        message.kind = story.generation.key.kind
        message.generation.CopyFrom(render_generation(story.generation, story.queue))
    if story.record is not None:
        _render_record(message, story.record)
    _render_clocks(message, story)
    return message


def _render_record(message: pb.DescribeRequestResponse, record: RequestRecord) -> None:
    request = record.request
    message.pdf_hash, message.page, message.locale = request.pdf_hash, request.page, request.locale
    message.private = request.scope != SHARED_SCOPE
    message.kind = request.kind
    message.refund_due = record.refund_due
    message.created_at.FromDatetime(record.created_at)
    message.updated_at.FromDatetime(record.updated_at)


def _render_clocks(message: pb.DescribeRequestResponse, story: Story) -> None:
    if story.clocks is None:
        return
    message.clocks.attempts_left = story.attempts_left
    clocks = {
        "run_after": story.clocks.run_after,
        "queue_deadline_at": story.queue_deadline_at,
        "leased_until": story.clocks.leased_until,
        "deadline_at": story.clocks.deadline_at,
    }
    for name, at in clocks.items():
        if at is not None:
            getattr(message.clocks, name).FromDatetime(at)


def render_queue(report: QueueReport) -> pb.DescribeQueueResponse:
    message = pb.DescribeQueueResponse(refunds_due=report.refunds_due)
    message.taken_at.FromDatetime(report.taken_at)
    for one in report.lanes:
        lane = message.lanes.add(
            name=one.lane.name.lower(),
            waiting=one.waiting,
            leased=one.leased,
            retrying=one.retrying,
            expired=one.expired,
        )
        if one.oldest_wait is not None:
            lane.oldest_wait.FromTimedelta(one.oldest_wait)
    return message


def render_losses(days: Iterable[DayOfLosses]) -> pb.ListLeaseLossesResponse:
    message = pb.ListLeaseLossesResponse()
    for one in days:
        message.days.add(
            day=one.day.isoformat(),
            leases_expired=one.counts.get(Loss.LEASE_EXPIRED, 0),
            attempts_spent=one.counts.get(Loss.ATTEMPTS_SPENT, 0),
            queue_timeouts=one.counts.get(Loss.QUEUE_TIMEOUT, 0),
        )
    return message


def render_failure(failure: AttemptFailure) -> pb.AttemptFailure:
    message = pb.AttemptFailure(
        attempt=failure.attempt, reason=failure.reason, message=failure.message
    )
    message.failed_at.FromDatetime(failure.failed_at)
    return message


def prepare_result(generation: Generation) -> bytes:
    """What was made, as a part of the answer to who asked for it."""
    if generation.key.kind == DOCUMENT_MARKDOWN:
        return pb.ConvertDocumentResponse(markdown=_markdown(generation)).SerializeToString()
    return pb.ExplainPageResponse(stickers=_stickers(generation)).SerializeToString()


def pack_result(item: jobs_pb2.CompleteJobsRequest.Item) -> bytes:
    """A result as it is kept: as the worker sent it, but for its lease."""
    item.ClearField("lease")
    return item.SerializeToString()


def check_result(item: jobs_pb2.CompleteJobsRequest.Item) -> None:
    check_stickers(item.stickers)
    require("\0" not in item.markdown, "markdown", "must not hold NUL characters")
    fits = len(item.markdown.encode()) <= MAX_MARKDOWN_BYTES
    require(fits, "markdown", "must be at most 3 MiB")
    require(not (item.stickers and item.markdown), "markdown", "must be empty with stickers")


def _markdown(generation: Generation) -> str:
    return jobs_pb2.CompleteJobsRequest.Item.FromString(generation.result or b"").markdown


def _stickers(generation: Generation) -> Iterable[pb.Sticker]:
    if generation.result is not None:
        return jobs_pb2.CompleteJobsRequest.Item.FromString(generation.result).stickers
    return [_render_sticker(sticker) for sticker in generation.result_json or ()]


def render_error(generation: Generation) -> pb.GenerationError:
    return pb.GenerationError(
        reason=generation.error_reason or "", message=generation.error_message or ""
    )


def _render_sticker(sticker: dict[str, Any]) -> pb.Sticker:
    """As JSON was kept."""
    message = pb.Sticker(
        sticker_id=sticker["sticker_id"],
        kind=pb.StickerKind.Value(f"STICKER_KIND_{sticker['kind'].upper()}"),
        title=sticker["title"],
        body_markdown=sticker["body_markdown"],
        anchor=pb.Anchor(quote=sticker["quote"]),
    )
    if box := sticker["box"]:
        left, top, right, bottom = box
        message.anchor.box.CopyFrom(pb.Box(left=left, top=top, right=right, bottom=bottom))
    return message


def check_stickers(stickers: Sequence[pb.Sticker]) -> None:
    require(len(stickers) <= MAX_STICKERS, "stickers", f"must be at most {MAX_STICKERS}")
    parse_each("stickers", stickers, _check_sticker)


def _check_sticker(message: pb.Sticker) -> None:
    anchor = message.anchor
    require(message.kind in _KINDS, "kind", "must be set")
    parse_text("sticker_id", message.sticker_id, most=32)
    parse_text("title", message.title, most=MAX_TITLE)
    parse_text("body_markdown", message.body_markdown, most=MAX_BODY)
    parse_text("anchor.quote", anchor.quote, least=0, most=MAX_QUOTE)
    if anchor.HasField("box"):
        _check_box(anchor.box)


def parse_struct(message: struct_pb2.Struct) -> dict[str, Any]:
    """Plain values; protobuf's own conversion would turn some numbers into others."""
    return {name: _parse_value(value) for name, value in message.fields.items()}


def _parse_value(message: struct_pb2.Value) -> Any:
    match message.WhichOneof("kind"):
        case "struct_value":
            return parse_struct(message.struct_value)
        case "list_value":
            return [_parse_value(value) for value in message.list_value.values]
        case "null_value" | None:
            return None
        case kind:
            return getattr(message, kind)


def _check_box(box: pb.Box) -> None:
    inside = all(0 <= edge <= 1 for edge in (box.left, box.top, box.right, box.bottom))
    ordered = box.left <= box.right and box.top <= box.bottom
    require(inside and ordered, "anchor.box", "must lie on the page, edges from 0 to 1")
