"""WorkerService as gRPC sees it: check, call, render; decides nothing."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from glossa.cache.v1 import cache_pb2
from glossa.worker.v1 import worker_pb2 as pb
from glossa.worker.v1.worker_pb2_grpc import WorkerServiceServicer

from services.runtime.auth import allow, current_caller, require_user
from services.runtime.interceptors import Context
from services.runtime.validation import parse_identity, parse_uuid, require
from services.worker.domain import Failure
from services.worker.generation import Update
from services.worker.watch import Watches
from services.worker.wire import duration_message, stage_value, status_value, sticker_message


class WorkerHandler(WorkerServiceServicer):
    """Speaks protobuf for watchers."""

    def __init__(self, watches: Watches) -> None:
        self._watches = watches

    @allow("gateway", "admin", "user")
    async def WatchGeneration(
        self, request: pb.WatchGenerationRequest, context: Context
    ) -> AsyncIterator[pb.WatchGenerationResponse]:
        generation_id = parse_uuid("generation_id", request.generation_id)
        user_id = _user_id(request.user_id)
        require(request.after_sequence >= 0, "after_sequence", "must not be negative")
        updates = self._watches.watch(
            generation_id, user_id=user_id, after_sequence=request.after_sequence
        )
        async with aclosing(updates):
            async for update in updates:
                yield _response(update)


def _user_id(value: str) -> str:
    """Whose access is checked; only admins may look without a user."""
    if value == "" and "admin" in current_caller().scopes:
        return value
    user_id = parse_identity("user_id", value)
    require_user(user_id)
    return user_id


def _response(update: Update) -> pb.WatchGenerationResponse:
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
    )


def _error(failure: Failure | None) -> cache_pb2.GenerationError | None:
    if failure is None:
        return None
    return cache_pb2.GenerationError(reason=failure.reason, message=failure.message)
