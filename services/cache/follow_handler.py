"""The part of JobService about jobs that nobody holds: how they stand, which failed, redrive."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import structlog
from glossa.cache.v1 import jobs_pb2 as pb
from glossa.cache.v1.jobs_pb2_grpc import JobServiceServicer

from services.cache.domain import SHARED_SCOPE
from services.cache.failed_store import FailedJob, FailedStore, Redriven, RedriveVerdict
from services.cache.queue import JobBell, Pace
from services.cache.status_store import StatusStore
from services.cache.wire import MODES, render_failure, render_generation
from services.runtime.auth import allow
from services.runtime.interceptors import Context
from services.runtime.timestamps import parse_timestamp
from services.runtime.validation import parse_uuid, require

log = structlog.get_logger()

MOST = 500
DEFAULT_PAGE = 100
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


class FollowHandler(JobServiceServicer):
    """Speaks protobuf for workers that look on."""

    def __init__(
        self, *, statuses: StatusStore, failed: FailedStore, bell: JobBell, pace: Pace
    ) -> None:
        self._statuses = statuses
        self._failed = failed
        self._bell = bell
        self._pace = pace

    @allow("worker", "admin")
    async def GetGenerations(
        self, request: pb.GetGenerationsRequest, context: Context
    ) -> pb.GetGenerationsResponse:
        wanted = _ids(request.generation_ids)
        found = await self._statuses.read_statuses(wanted, seconds_each=self._pace.seconds)
        return pb.GetGenerationsResponse(
            generations=[render_generation(generation, queue) for generation, queue in found]
        )

    @allow("worker")
    async def ListFailedJobs(
        self, request: pb.ListFailedJobsRequest, context: Context
    ) -> pb.ListFailedJobsResponse:
        size = request.page_size or DEFAULT_PAGE
        require(1 <= size <= MOST, "page_size", f"must be 1 to {MOST}")
        after = None
        if request.after_generation_id:
            after = parse_uuid("after_generation_id", request.after_generation_id)
        jobs = await self._failed.list_failed(_since(request), after, size)
        return pb.ListFailedJobsResponse(jobs=[_failed_job(job) for job in jobs])

    @allow("worker")
    async def RedriveJobs(
        self, request: pb.RedriveJobsRequest, context: Context
    ) -> pb.RedriveJobsResponse:
        results = [await self._failed.redrive(one) for one in _ids(request.generation_ids)]
        started = sum(result.verdict is RedriveVerdict.STARTED for result in results)
        if started:
            self._bell.ring()
            log.info("jobs_redriven", count=started)
        return pb.RedriveJobsResponse(results=[_result(result) for result in results])


def _ids(values: Sequence[str]) -> list[UUID]:
    require(len(values) <= MOST, "generation_ids", f"must hold at most {MOST} items")
    return [parse_uuid(f"generation_ids[{index}]", one) for index, one in enumerate(values)]


def _since(request: pb.ListFailedJobsRequest) -> datetime:
    if not request.HasField("failed_since"):
        return LONG_AGO
    return parse_timestamp("failed_since", request.failed_since)


def _failed_job(job: FailedJob) -> pb.FailedJob:
    key = job.key
    message = pb.FailedJob(
        generation_id=str(job.generation_id),
        kind=key.kind,
        pdf_hash=key.pdf_hash,
        page=key.page,
        locale=key.locale,
        effective_mode=MODES[key.effective_mode],
        prompt_version=key.prompt_version,
        model=key.model,
        private=key.scope != SHARED_SCOPE,
        permanent=job.permanent,
        attempts=job.tried,
        failures=[render_failure(failure) for failure in job.failures],
    )
    message.error.reason, message.error.message = job.reason, job.message
    message.created_at.FromDatetime(job.created_at)
    message.failed_at.FromDatetime(job.failed_at)
    return message


def _result(result: Redriven) -> pb.RedriveJobsResponse.Result:
    return pb.RedriveJobsResponse.Result(
        verdict=pb.RedriveVerdict.Value(f"REDRIVE_VERDICT_{result.verdict.upper()}"),
        generation_id=str(result.generation_id) if result.generation_id else "",
    )
