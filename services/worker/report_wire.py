"""Dead letters, samples and summaries as protobuf and back, for clients and handler."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from uuid import UUID

from glossa.cache.v1 import cache_pb2, jobs_pb2
from glossa.quota.v1 import quota_pb2
from glossa.registry.v1 import registry_pb2
from glossa.worker.v1 import worker_pb2 as pb
from google.protobuf.timestamp_pb2 import Timestamp

from services.runtime.errors import InvalidInput
from services.runtime.timestamps import parse_timestamp
from services.runtime.validation import parse_pdf_hash, parse_text, parse_uuid, require
from services.worker.dead_letter import (
    AttemptFailure,
    DeadLetter,
    Filter,
    Place,
    Redrive,
    Redriven,
    RedriveProgress,
    Spending,
)
from services.worker.sample import DailySummary, Latency, Metrics, SampleGroup
from services.worker.wire import MODE_VALUES, MODES

MOST_WORD = 64
MOST_IDS = 1_000
MOST_SAMPLES = 10_000
DAY_MS = 86_400_000
LARGEST = 2**31 - 1

_OUTCOMES = {
    quota_pb2.OUTCOME_GENERATED: "generated",
    quota_pb2.OUTCOME_JOINED: "joined",
    quota_pb2.OUTCOME_CACHED: "cached",
}
_VERDICTS = {
    jobs_pb2.REDRIVE_VERDICT_STARTED: Redrive.STARTED,
    jobs_pb2.REDRIVE_VERDICT_ALREADY_LIVE: Redrive.ALREADY_LIVE,
}


def dead_letter_from(message: jobs_pb2.FailedJob) -> DeadLetter:
    return DeadLetter(
        generation_id=UUID(message.generation_id),
        kind=message.kind,
        pdf_hash=message.pdf_hash,
        page=message.page,
        locale=message.locale,
        effective_mode=MODES.get(message.effective_mode, "text_only"),
        model=message.model,
        prompt_version=message.prompt_version,
        private=message.private,
        reason=message.error.reason,
        message=message.error.message,
        permanent=message.permanent,
        attempts=message.attempts,
        failures=tuple(_failure_from(failure) for failure in message.failures),
        created_at=_moment(message.created_at),
        failed_at=_moment(message.failed_at),
    )


def redriven_from(message: jobs_pb2.RedriveJobsResponse.Result) -> Redriven:
    return Redriven(
        verdict=_VERDICTS.get(message.verdict, Redrive.GONE),
        generation_id=UUID(message.generation_id) if message.generation_id else None,
    )


def spending_from(costs: Mapping[UUID, int], day: quota_pb2.Budget) -> Spending:
    resets_in = _moment(day.resets_at) - datetime.now(UTC)
    return Spending(costs=costs, exhausted=day.exhausted, resets_in=max(resets_in, timedelta()))


def dead_letter_message(letter: DeadLetter) -> pb.DeadLetter:
    message = pb.DeadLetter(
        generation_id=str(letter.generation_id),
        kind=letter.kind,
        pdf_hash=letter.pdf_hash,
        page=letter.page,
        locale=letter.locale,
        effective_mode=_mode_value(letter.effective_mode),
        model=letter.model,
        prompt_version=letter.prompt_version,
        private=letter.private,
        error=cache_pb2.GenerationError(reason=letter.reason, message=letter.message),
        permanent=letter.permanent,
        attempts=letter.attempts,
        failures=[_failure_message(failure) for failure in letter.failures],
        cost_nanodollars=letter.cost_nanodollars,
        created_at=_timestamp(letter.created_at),
        failed_at=_timestamp(letter.failed_at),
        redriven_as=str(letter.redriven_as) if letter.redriven_as else "",
    )
    if letter.redriven_at is not None:
        message.redriven_at.FromDatetime(letter.redriven_at)
    return message


def parse_filter(message: pb.DeadLetterFilter) -> Filter:
    few = len(message.generation_ids) <= MOST_IDS
    require(few, "filter.generation_ids", f"must hold at most {MOST_IDS} items")
    ids = tuple(
        parse_uuid(f"filter.generation_ids[{index}]", one)
        for index, one in enumerate(message.generation_ids)
    )
    pdf_hash = message.pdf_hash
    begins, ends = message.HasField("begins_at"), message.HasField("ends_at")
    return Filter(
        reason=_word("reason", message.reason),
        kind=_word("kind", message.kind),
        pdf_hash=parse_pdf_hash("filter.pdf_hash", pdf_hash) if pdf_hash else None,
        locale=_word("locale", message.locale),
        model=_word("model", message.model),
        begins_at=parse_timestamp("filter.begins_at", message.begins_at) if begins else None,
        ends_at=parse_timestamp("filter.ends_at", message.ends_at) if ends else None,
        generation_ids=ids or None,
    )


def page_token(letter: DeadLetter) -> str:
    written = f"{letter.failed_at.isoformat()} {letter.generation_id}"
    return base64.urlsafe_b64encode(written.encode()).decode()


def parse_page_token(token: str) -> Place | None:
    if not token:
        return None
    try:
        moment, _, number = base64.urlsafe_b64decode(token).decode().partition(" ")
        place = Place(failed_at=datetime.fromisoformat(moment), generation_id=UUID(number))
    except (ValueError, binascii.Error):
        place = None
    known = place is not None and place.failed_at.tzinfo is not None
    require(known, "page_token", "must be one that was given with a page before")
    return place


def progress_message(progress: RedriveProgress) -> pb.RedriveDeadLettersResponse:
    reason = pb.RedriveDeadLettersResponse.Reason
    return pb.RedriveDeadLettersResponse(
        total=progress.total,
        started=progress.counts[Redrive.STARTED],
        already_live=progress.counts[Redrive.ALREADY_LIVE],
        gone=progress.counts[Redrive.GONE],
        reasons=[reason(reason=name, count=count) for name, count in progress.reasons.items()],
    )


def parse_samples(groups: Sequence[pb.SampleGroup]) -> list[SampleGroup]:
    samples = sum(len(group.latency_ms) for group in groups)
    require(1 <= samples <= MOST_SAMPLES, "groups", f"must hold 1 to {MOST_SAMPLES} samples")
    return [_group(group, f"groups[{index}]") for index, group in enumerate(groups)]


def _group(message: pb.SampleGroup, field: str) -> SampleGroup:
    require(message.page >= 1, f"{field}.page", "must be at least 1")
    require(message.effective_mode in MODES, f"{field}.effective_mode", "must be set")
    outcome = _OUTCOMES.get(message.outcome)
    require(outcome is not None, f"{field}.outcome", "must be GENERATED, JOINED or CACHED")
    assert outcome is not None
    counted = message.images_count >= 0 and message.chunks >= 0
    require(counted, f"{field}.chunks", "and images_count must not be negative")
    alike = len(message.latency_ms) == len(message.age_ms)
    require(alike, f"{field}.age_ms", "must have as many entries as latency_ms")
    require(all(one >= 0 for one in message.latency_ms), f"{field}.latency_ms", "must be positive")
    in_range = all(0 <= one <= DAY_MS for one in message.age_ms)
    require(in_range, f"{field}.age_ms", "must be 0 to a day")
    return SampleGroup(
        kind=parse_text(f"{field}.kind", message.kind, most=MOST_WORD),
        pdf_hash=parse_pdf_hash(f"{field}.pdf_hash", message.pdf_hash),
        page=message.page,
        locale=parse_text(f"{field}.locale", message.locale, most=MOST_WORD),
        effective_mode=MODES[message.effective_mode],
        outcome=outcome,
        images_count=message.images_count,
        chunks=message.chunks,
        latency_ms=message.latency_ms,
        age_ms=message.age_ms,
    )


def parse_day(written: str) -> date | None:
    if not written:
        return None
    try:
        return datetime.strptime(written, "%Y-%m-%d").replace(tzinfo=UTC).date()
    except ValueError:
        raise InvalidInput("day must be a date like 2026-11-18", field="day") from None


def summary_message(summary: DailySummary) -> pb.GetDailySummaryResponse:
    response = pb.GetDailySummaryResponse
    return response(
        day=summary.day.isoformat(),
        total=_metrics(summary.total),
        hours=[
            response.Hour(hour=hour, metrics=_metrics(metrics))
            for hour, metrics in summary.hours.items()
        ],
        modes=_parts(summary.modes),
        locales=_parts(summary.locales),
        documents=_parts(summary.documents),
        failures=[
            response.Failure(reason=reason, count=count)
            for reason, count in summary.failures.items()
        ],
        complete_until=_timestamp(summary.complete_until),
        open_dead_letters=summary.open_dead_letters,
    )


def _parts(parts: Mapping[str, Metrics]) -> list[pb.GetDailySummaryResponse.Part]:
    return [
        pb.GetDailySummaryResponse.Part(name=name, metrics=_metrics(metrics))
        for name, metrics in parts.items()
    ]


def _metrics(metrics: Metrics) -> pb.Metrics:
    return pb.Metrics(
        cache_hits=metrics.cache_hits,
        cache_misses=metrics.cache_misses,
        joins=metrics.joins,
        failures=metrics.failures,
        generation=_latency(metrics.generation),
        hit=_latency(metrics.hit),
        total_images=metrics.total_images,
        total_chunks=metrics.total_chunks,
    )


def _latency(latency: Latency) -> pb.Latency:
    return pb.Latency(p50_ms=latency.p50_ms, p95_ms=latency.p95_ms, p99_ms=latency.p99_ms)


def _word(field: str, value: str) -> str | None:
    return parse_text(f"filter.{field}", value, most=MOST_WORD) if value else None


def _mode_value(mode: str) -> registry_pb2.EffectiveMode.ValueType:
    return MODE_VALUES.get(mode, registry_pb2.EFFECTIVE_MODE_UNSPECIFIED)


def _failure_from(message: cache_pb2.AttemptFailure) -> AttemptFailure:
    return AttemptFailure(
        attempt=message.attempt,
        reason=message.reason,
        message=message.message,
        failed_at=_moment(message.failed_at),
    )


def _failure_message(failure: AttemptFailure) -> cache_pb2.AttemptFailure:
    return cache_pb2.AttemptFailure(
        attempt=failure.attempt,
        reason=failure.reason,
        message=failure.message,
        failed_at=_timestamp(failure.failed_at),
    )


def _moment(timestamp: Timestamp) -> datetime:
    return timestamp.ToDatetime(tzinfo=UTC)


def _timestamp(moment: datetime) -> Timestamp:
    timestamp = Timestamp()
    timestamp.FromDatetime(moment)
    return timestamp
