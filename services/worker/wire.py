"""Translates between protobuf messages and this service's values, for clients and handler."""

import hashlib
from datetime import timedelta
from uuid import UUID

from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from google.protobuf.duration_pb2 import Duration

from services.worker.domain import (
    DOCUMENT_MARKDOWN,
    PAGE_EXPLANATION,
    Box,
    Failure,
    Image,
    Job,
    Lease,
    ModelCall,
    Progress,
    Stage,
    Status,
    Sticker,
    StickerKind,
    Verdict,
)
from services.worker.generation import GenerationView

MODES = {
    registry_pb2.EFFECTIVE_MODE_TEXT_ONLY: "text_only",
    registry_pb2.EFFECTIVE_MODE_WITH_IMAGES: "with_images",
}
MODE_VALUES = {name: value for value, name in MODES.items()}
_ENDPOINTS = {PAGE_EXPLANATION: "explain_page", DOCUMENT_MARKDOWN: "convert_document"}
_VERDICTS = {
    jobs_pb2.JOB_VERDICT_ACCEPTED: Verdict.ACCEPTED,
    jobs_pb2.JOB_VERDICT_RETRYING: Verdict.RETRYING,
    jobs_pb2.JOB_VERDICT_LEASE_LOST: Verdict.LEASE_LOST,
}


def job_from(message: jobs_pb2.Job) -> Job:
    return Job(
        lease=Lease(generation_id=UUID(message.lease.generation_id), attempt=message.lease.attempt),
        kind=message.kind,
        # A Cache of an older version does not tell: nothing is shared then.
        scope=message.scope or f"generation:{message.lease.generation_id}",
        pdf_hash=message.pdf_hash,
        page=message.page,
        locale=message.locale,
        effective_mode=MODES.get(message.effective_mode, "text_only"),
        images_count=message.images_count,
        model=message.model,
        prompt_version=message.prompt_version,
        time_left=message.time_left.ToTimedelta(),
        traceparent=message.traceparent,
    )


def image_from(message: registry_pb2.PageImage) -> Image:
    return Image(digest=message.digest, media_type=message.media_type, content=message.content)


def render_from(content: bytes) -> Image:
    return Image(
        digest=hashlib.sha256(content).hexdigest(), media_type="image/png", content=content
    )


def verdict_from(message: jobs_pb2.JobVerdict.ValueType) -> Verdict:
    # A verdict we do not know is none to build on.
    return _VERDICTS.get(message, Verdict.LEASE_LOST)


def lease_message(lease: Lease) -> jobs_pb2.Lease:
    return jobs_pb2.Lease(generation_id=str(lease.generation_id), attempt=lease.attempt)


def progress_message(lease: Lease, progress: Progress | None) -> jobs_pb2.LeaseProgress:
    message = jobs_pb2.LeaseProgress(lease=lease_message(lease))
    if progress is not None:
        message.stage = stage_value(progress.stage)
        message.done, message.total = progress.done, progress.total
        message.chunks = progress.chunks
    return message


def failure_message(lease: Lease, failure: Failure) -> jobs_pb2.FailJobsRequest.Item:
    return jobs_pb2.FailJobsRequest.Item(
        lease=lease_message(lease),
        reason=failure.reason,
        message=failure.message,
        permanent=failure.permanent,
        retry_after=duration_message(failure.retry_after),
    )


def operation_message(call: ModelCall) -> quota_pb2.Operation:
    job, usage = call.job, call.usage
    return quota_pb2.Operation(
        operation_id=str(call.operation_id),
        endpoint=_ENDPOINTS[job.kind],
        model=call.model,
        input_tokens=usage.input_tokens,
        # A provider that reports more cached tokens than tokens is believed in the latter.
        cached_input_tokens=min(usage.cached_tokens, usage.input_tokens),
        output_tokens=usage.output_tokens,
        duration=duration_message(call.duration),
        outcome=call.outcome,
        attempt=job.lease.attempt,
        generation_id=str(job.lease.generation_id),
        page=quota_pb2.PageContext(
            pdf_hash=job.pdf_hash,
            page=job.page,
            locale=job.locale,
            effective_mode=MODE_VALUES[job.effective_mode],
        ),
    )


def generation_from(message: cache_pb2.Generation) -> GenerationView:
    status = Status(_word(cache_pb2.GenerationStatus.Name(message.status), "GENERATION_STATUS_"))
    waits = message.HasField("estimated_wait")
    return GenerationView(
        generation_id=UUID(message.generation_id),
        status=status,
        stage=_stage(message.stage, status),
        attempts=message.attempts,
        done=message.done,
        total=message.total,
        queue_position=message.queue_position,
        estimated_wait=message.estimated_wait.ToTimedelta() if waits else None,
        stickers=tuple(sticker_from(sticker) for sticker in message.stickers),
        markdown=message.markdown,
        error=_error(message) if status is Status.FAILED else None,
    )


def _stage(value: cache_pb2.Stage.ValueType, status: Status) -> Stage:
    if status is not Status.GENERATING:
        return Stage(status.value)
    if value == cache_pb2.STAGE_UNSPECIFIED:
        return Stage.QUEUED
    return Stage(_word(cache_pb2.Stage.Name(value), "STAGE_"))


def _error(message: cache_pb2.Generation) -> Failure:
    return Failure(reason=message.error.reason, message=message.error.message)


def sticker_from(message: cache_pb2.Sticker) -> Sticker:
    box = message.anchor.box if message.anchor.HasField("box") else None
    return Sticker(
        sticker_id=message.sticker_id,
        kind=StickerKind(_word(cache_pb2.StickerKind.Name(message.kind), "STICKER_KIND_")),
        title=message.title,
        body_markdown=message.body_markdown,
        quote=message.anchor.quote,
        box=box and Box(left=box.left, top=box.top, right=box.right, bottom=box.bottom),
    )


def sticker_message(sticker: Sticker) -> cache_pb2.Sticker:
    anchor = cache_pb2.Anchor(quote=sticker.quote)
    if sticker.box is not None:
        anchor.box.CopyFrom(cache_pb2.Box(**vars(sticker.box)))
    return cache_pb2.Sticker(
        sticker_id=sticker.sticker_id,
        kind=cache_pb2.StickerKind.Value(f"STICKER_KIND_{sticker.kind.name}"),
        title=sticker.title,
        body_markdown=sticker.body_markdown,
        anchor=anchor,
    )


def status_value(status: Status) -> cache_pb2.GenerationStatus.ValueType:
    return cache_pb2.GenerationStatus.Value(f"GENERATION_STATUS_{status.name}")


def stage_value(stage: Stage) -> cache_pb2.Stage.ValueType:
    return cache_pb2.Stage.Value(f"STAGE_{stage.name}")


def duration_message(value: timedelta | None) -> Duration | None:
    if value is None:
        return None
    message = Duration()
    message.FromTimedelta(value)
    return message


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
