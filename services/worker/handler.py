"""WorkerService as gRPC sees it: check, call, render; decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import timedelta

from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2 as pb
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceServicer

from services.runtime.auth import allow, current_caller, require_user
from services.runtime.errors import DependencyDown
from services.runtime.interceptors import Context
from services.runtime.validation import parse_identity, parse_text, parse_uuid, require
from services.worker import report_wire
from services.worker.dead_letter import Filter
from services.worker.dead_letters import DeadLetters
from services.worker.domain import Failure
from services.worker.generation import Update
from services.worker.metrics import SAMPLES, SLOW_READERS
from services.worker.sample_store import SampleStore
from services.worker.watch import Watches
from services.worker.wire import duration_message, stage_value, status_value, sticker_message

DEFAULT_PAGE = 50
MOST_PAGE = 500
DEFAULT_KIND = "page_explanation"


class ReaderTooSlow(DependencyDown):
    """The watcher does not take its messages; it may come back when it can."""

    def __init__(self) -> None:
        super().__init__(
            "a message was not taken for too long; resume when ready to read",
            reason="READER_TOO_SLOW",
        )


class WorkerHandler(WorkerServiceServicer):
    """Speaks protobuf for watchers, admins and the Cache."""

    def __init__(
        self,
        *,
        watches: Watches[pb.WatchGenerationResponse],
        letters: DeadLetters,
        samples: SampleStore,
        slow_reader: timedelta,
    ) -> None:
        self._watches = watches
        self._letters = letters
        self._samples = samples
        self._slow_reader = slow_reader

    @allow("gateway", "admin", "user")
    async def WatchGeneration(
        self, request: pb.WatchGenerationRequest, context: Context
    ) -> AsyncIterator[pb.WatchGenerationResponse]:
        generation_id = parse_uuid("generation_id", request.generation_id)
        user_id = _user_id(request.user_id)
        require(request.after_sequence >= 0, "after_sequence", "must not be negative")
        resumes = request.resume or request.after_sequence > 0
        messages = self._watches.watch(
            generation_id,
            user_id=user_id,
            after_sequence=request.after_sequence if resumes else None,
        )
        async with aclosing(messages):
            async for message in messages:
                await self._write(message, context)
        return
        yield  # a stream has to be a generator; its messages are written above, within their time

    @allow("admin")
    async def ListDeadLetters(
        self, request: pb.ListDeadLettersRequest, context: Context
    ) -> pb.ListDeadLettersResponse:
        chosen = report_wire.parse_filter(request.filter)
        size = request.page_size or DEFAULT_PAGE
        require(1 <= size <= MOST_PAGE, "page_size", f"must be 1 to {MOST_PAGE}")
        after = report_wire.parse_page_token(request.page_token)
        # One more than asked tells whether there is a next page.
        letters, total = await self._letters.list_letters(
            chosen, include_redriven=request.include_redriven, after=after, most=size + 1
        )
        page = letters[:size]
        return pb.ListDeadLettersResponse(
            dead_letters=[report_wire.dead_letter_message(letter) for letter in page],
            next_page_token=report_wire.page_token(page[-1]) if len(letters) > size else "",
            total=total,
        )

    @allow("admin")
    async def GetDeadLetter(
        self, request: pb.GetDeadLetterRequest, context: Context
    ) -> pb.GetDeadLetterResponse:
        letter = await self._letters.get_letter(parse_uuid("generation_id", request.generation_id))
        return pb.GetDeadLetterResponse(dead_letter=report_wire.dead_letter_message(letter))

    @allow("admin")
    async def RedriveDeadLetters(
        self, request: pb.RedriveDeadLettersRequest, context: Context
    ) -> AsyncIterator[pb.RedriveDeadLettersResponse]:
        chosen = report_wire.parse_filter(request.filter)
        meant = chosen != Filter() or request.all
        require(meant, "filter", "must choose something; set all to redrive everything")
        steps = self._letters.redrive(chosen, dry_run=request.dry_run)
        async with aclosing(steps):
            async for progress in steps:
                yield report_wire.progress_message(progress)

    @allow("cache")
    async def RecordSamples(
        self, request: pb.RecordSamplesRequest, context: Context
    ) -> pb.RecordSamplesResponse:
        batch_id = parse_uuid("batch_id", request.batch_id)
        groups = report_wire.parse_samples(request.groups)
        if await self._samples.record_samples(batch_id, groups):
            SAMPLES.inc(sum(len(group.latency_ms) for group in groups))
        return pb.RecordSamplesResponse()

    @allow("admin")
    async def GetDailySummary(
        self, request: pb.GetDailySummaryRequest, context: Context
    ) -> pb.GetDailySummaryResponse:
        day = report_wire.parse_day(request.day)
        kind = parse_text("kind", request.kind or DEFAULT_KIND, most=report_wire.MOST_WORD)
        return report_wire.summary_message(await self._samples.read_summary(day, kind))

    async def _write(self, message: pb.WatchGenerationResponse, context: Context) -> None:
        """While one reader is slow, nothing piles up for it; but not for ever."""
        try:
            async with asyncio.timeout(self._slow_reader.total_seconds()):
                await context.write(message)
        except TimeoutError:
            SLOW_READERS.inc()
            raise ReaderTooSlow from None


def _user_id(value: str) -> str:
    """Whose access is checked; only admins may look without a user."""
    if value == "" and "admin" in current_caller().scopes:
        return value
    user_id = parse_identity("user_id", value)
    require_user(user_id)
    return user_id


def render_update(update: Update) -> pb.WatchGenerationResponse:
    return pb.WatchGenerationResponse(
        sequence=update.sequence,
        status=status_value(update.status),
        stage=stage_value(update.stage),
        attempt=update.attempt,
        done=update.done,
        total=update.total,
        queue_position=update.queue_position,
        estimated_wait=duration_message(update.estimated_wait),
        stickers=[sticker_message(sticker) for sticker in update.stickers],
        error=_error(update.error),
        heartbeat=update.heartbeat,
        snapshot=update.snapshot,
        markdown=update.markdown,
    )


def _error(failure: Failure | None) -> cache_pb2.GenerationError | None:
    if failure is None:
        return None
    return cache_pb2.GenerationError(reason=failure.reason, message=failure.message)
