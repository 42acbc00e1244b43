"""Generations and stickers as protobuf and back; shared by the two handlers of this service."""

from collections.abc import Sequence
from typing import Any

from glossa.cache.v1 import cache_pb2 as pb
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from google.protobuf import struct_pb2

from services.cache.describe import Story
from services.cache.domain import (
    SHARED_SCOPE,
    AttemptFailure,
    Generation,
    Queue,
    RequestRecord,
    Status,
    Sticker,
)
from services.runtime.validation import parse_text, require

MAX_STICKERS = 50
MAX_TITLE = 300
MAX_BODY = 20_000
MAX_QUOTE = 2_000

STATUSES = {
    Status.GENERATING: pb.GENERATION_STATUS_GENERATING,
    Status.READY: pb.GENERATION_STATUS_READY,
    Status.FAILED: pb.GENERATION_STATUS_FAILED,
}
_KINDS = {
    value: name.removeprefix("STICKER_KIND_").lower()
    for name, value in pb.StickerKind.items()
    if value != pb.STICKER_KIND_UNSPECIFIED
}
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
        stickers=[render_sticker(sticker) for sticker in generation.stickers],
        prompt_version=generation.key.prompt_version,
        model=generation.key.model,
        locale=generation.key.locale,
        effective_mode=MODES[generation.key.effective_mode],
        done=generation.done,
        total=generation.total,
        queue_position=queue.position,
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
        message.generation.CopyFrom(render_generation(story.generation, story.queue))
    if story.record is not None:
        _render_record(message, story.record)
    _render_clocks(message, story)
    return message


def _render_record(message: pb.DescribeRequestResponse, record: RequestRecord) -> None:
    request = record.request
    message.pdf_hash, message.page, message.locale = request.pdf_hash, request.page, request.locale
    message.private = request.scope != SHARED_SCOPE
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


def render_failure(failure: AttemptFailure) -> pb.AttemptFailure:
    message = pb.AttemptFailure(
        attempt=failure.attempt, reason=failure.reason, message=failure.message
    )
    message.failed_at.FromDatetime(failure.failed_at)
    return message


def prepare_stickers(stickers: Sequence[Sticker]) -> bytes:
    """Stickers as a part of any message that holds them in the same field."""
    return pb.ExplainPageResponse(
        stickers=[render_sticker(sticker) for sticker in stickers]
    ).SerializeToString()


def render_error(generation: Generation) -> pb.GenerationError:
    return pb.GenerationError(
        reason=generation.error_reason or "", message=generation.error_message or ""
    )


def render_sticker(sticker: Sticker) -> pb.Sticker:
    message = pb.Sticker(
        sticker_id=sticker.sticker_id,
        kind=pb.StickerKind.Value(f"STICKER_KIND_{sticker.kind.upper()}"),
        title=sticker.title,
        body_markdown=sticker.body_markdown,
        anchor=pb.Anchor(quote=sticker.quote),
    )
    if sticker.box is not None:
        left, top, right, bottom = sticker.box
        message.anchor.box.CopyFrom(pb.Box(left=left, top=top, right=right, bottom=bottom))
    return message


def parse_sticker(message: pb.Sticker, field: str) -> Sticker:
    kind = _KINDS.get(message.kind)
    require(kind is not None, f"{field}.kind", "must be set")
    assert kind is not None
    return Sticker(
        sticker_id=parse_text(f"{field}.sticker_id", message.sticker_id, most=32),
        kind=kind,
        title=parse_text(f"{field}.title", message.title, most=MAX_TITLE),
        body_markdown=parse_text(f"{field}.body_markdown", message.body_markdown, most=MAX_BODY),
        quote=parse_text(f"{field}.anchor.quote", message.anchor.quote, least=0, most=MAX_QUOTE),
        box=_parse_box(message.anchor, field),
    )


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


def _parse_box(anchor: pb.Anchor, field: str) -> tuple[float, float, float, float] | None:
    if not anchor.HasField("box"):
        return None
    box = anchor.box
    inside = all(0 <= edge <= 1 for edge in (box.left, box.top, box.right, box.bottom))
    ordered = box.left <= box.right and box.top <= box.bottom
    require(inside and ordered, f"{field}.anchor.box", "must lie on the page, edges from 0 to 1")
    return (box.left, box.top, box.right, box.bottom)
