"""JobService as gRPC sees it: hands jobs to workers and takes their results."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from datetime import timedelta

from glossa.cache.v1 import cache_pb2
from glossa.cache.v1 import jobs_pb2 as pb
from glossa.cache.v1.jobs_pb2_grpc import JobServiceServicer
from prometheus_client import Counter

from services.cache.domain import Failure, Job, Lease, Progress, Sticker, Verdict
from services.cache.job_store import JobStore
from services.cache.queue import JobBell, Pace
from services.cache.wire import MAX_STICKERS, MODES, parse_sticker
from services.runtime.auth import allow
from services.runtime.interceptors import Context
from services.runtime.validation import parse_text, parse_uuid, require

MAX_CREDITS = 100
MAX_BATCH = 500
MAX_RETRY_AFTER_SECONDS = 86_400

LEASES_LOST = Counter(
    "glossa_cache_leases_lost_total", "Calls of late workers that changed nothing.", ["call"]
)
# What a worker may report; the other stages are the Cache's own.
_STAGES = {
    cache_pb2.STAGE_READING: "reading",
    cache_pb2.STAGE_ANALYSING_IMAGES: "analysing_images",
    cache_pb2.STAGE_EXPLAINING: "explaining",
}
_VERDICTS = {
    Verdict.ACCEPTED: pb.JOB_VERDICT_ACCEPTED,
    Verdict.LEASE_LOST: pb.JOB_VERDICT_LEASE_LOST,
    Verdict.RETRYING: pb.JOB_VERDICT_RETRYING,
}


class JobHandler(JobServiceServicer):
    """Speaks protobuf for workers."""

    def __init__(
        self,
        store: JobStore,
        *,
        bell: JobBell,
        pace: Pace,
        relay_wake: Callable[[], None],
        poll_seconds: float,
    ) -> None:
        self._store = store
        self._bell = bell
        self._pace = pace
        self._relay_wake = relay_wake
        self._poll_seconds = poll_seconds

    @allow("worker")
    async def LeaseJobs(
        self, request_iterator: AsyncIterator[pb.LeaseJobsRequest], context: Context
    ) -> AsyncIterator[pb.LeaseJobsResponse]:
        with self._bell.listen() as woken:
            worker = _LeaseStream(woken)
            reading = asyncio.create_task(worker.read(request_iterator))
            try:
                while not (worker.ended or self._bell.draining):
                    for job in await self._lease(worker):
                        yield pb.LeaseJobsResponse(job=_render_job(job))
                    await worker.wait(self._poll_seconds)
                if reading.done():
                    reading.result()  # a bad message from the worker is told to it
            finally:
                reading.cancel()

    @allow("worker")
    async def RenewLeases(
        self, request: pb.RenewLeasesRequest, context: Context
    ) -> pb.RenewLeasesResponse:
        _require_worker(request.worker_id, len(request.leases), "leases")
        renewals = [
            _progress(item, f"leases[{index}]") for index, item in enumerate(request.leases)
        ]
        kept, lost = await self._store.renew_leases(renewals)
        LEASES_LOST.labels("renew").inc(lost)
        return pb.RenewLeasesResponse(kept=[str(generation_id) for generation_id in kept])

    @allow("worker")
    async def CompleteJobs(
        self, request: pb.CompleteJobsRequest, context: Context
    ) -> pb.CompleteJobsResponse:
        _require_worker(request.worker_id, len(request.items), "items")
        results = [_result(item, f"items[{index}]") for index, item in enumerate(request.items)]
        verdicts = []
        for lease, stickers in results:
            seconds = await self._store.complete_job(lease, stickers)
            if seconds is not None:
                self._pace.add(seconds)
            verdicts.append(Verdict.LEASE_LOST if seconds is None else Verdict.ACCEPTED)
        return pb.CompleteJobsResponse(verdicts=_render_verdicts(verdicts, "complete"))

    @allow("worker")
    async def FailJobs(self, request: pb.FailJobsRequest, context: Context) -> pb.FailJobsResponse:
        _require_worker(request.worker_id, len(request.items), "items")
        failures = [_failure(item, f"items[{index}]") for index, item in enumerate(request.items)]
        verdicts = [await self._store.fail_job(failure) for failure in failures]
        self._relay_wake()
        return pb.FailJobsResponse(verdicts=_render_verdicts(verdicts, "fail"))

    async def _lease(self, worker: "_LeaseStream") -> list[Job]:
        if worker.credits == 0:
            return []
        jobs = await self._store.lease_jobs(worker.worker_id, min(worker.credits, MAX_CREDITS))
        worker.credits -= len(jobs)
        return jobs


class _LeaseStream:
    """One worker's stream: who it is, how many more jobs it takes, whether it has said goodbye."""

    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken
        self.worker_id = ""
        self.credits = 0
        self.ended = False

    async def read(self, requests: AsyncIterator[pb.LeaseJobsRequest]) -> None:
        try:
            async for request in requests:
                parse_text("worker_id", request.worker_id, most=128)
                in_range = 0 <= request.credits <= MAX_CREDITS
                require(in_range, "credits", f"must be 0 to {MAX_CREDITS}")
                self.worker_id = request.worker_id
                self.credits = min(self.credits + request.credits, 10 * MAX_CREDITS)
                self._woken.set()
        finally:
            self.ended = True
            self._woken.set()

    async def wait(self, poll_seconds: float) -> None:
        """Until somebody rings, or long enough to look for work without being told."""
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_seconds):
                await self._woken.wait()
        self._woken.clear()


def _require_worker(worker_id: str, size: int, field: str) -> None:
    parse_text("worker_id", worker_id, most=128)
    require(size <= MAX_BATCH, field, f"must hold at most {MAX_BATCH} items")


def _lease(message: pb.Lease, field: str) -> Lease:
    require(message.attempt >= 1, f"{field}.attempt", "must be at least 1")
    return Lease(
        generation_id=parse_uuid(f"{field}.generation_id", message.generation_id),
        attempt=message.attempt,
    )


def _progress(message: pb.LeaseProgress, field: str) -> Progress:
    stage = None
    if message.stage:
        require(message.stage in _STAGES, f"{field}.stage", "must be a stage of a running attempt")
        stage = _STAGES[message.stage]
    require(0 <= message.done <= message.total, f"{field}.done", "must be 0 to total")
    return Progress(
        lease=_lease(message.lease, f"{field}.lease"),
        stage=stage,
        done=message.done,
        total=message.total,
    )


def _result(message: pb.CompleteJobsRequest.Item, field: str) -> tuple[Lease, Sequence[Sticker]]:
    count = len(message.stickers)
    require(count <= MAX_STICKERS, f"{field}.stickers", f"must be at most {MAX_STICKERS}")
    stickers = [
        parse_sticker(sticker, f"{field}.stickers[{index}]")
        for index, sticker in enumerate(message.stickers)
    ]
    return _lease(message.lease, f"{field}.lease"), stickers


def _failure(message: pb.FailJobsRequest.Item, field: str) -> Failure:
    seconds = message.retry_after.seconds
    in_range = 0 <= seconds <= MAX_RETRY_AFTER_SECONDS
    require(in_range, f"{field}.retry_after", "must be 0 to 86400 seconds")
    return Failure(
        lease=_lease(message.lease, f"{field}.lease"),
        reason=parse_text(f"{field}.reason", message.reason, most=64),
        message=parse_text(f"{field}.message", message.message, least=0, most=1000),
        permanent=message.permanent,
        retry_after=timedelta(seconds=seconds),
    )


def _render_verdicts(verdicts: Sequence[Verdict], call: str) -> list["pb.JobVerdict.ValueType"]:
    LEASES_LOST.labels(call).inc(sum(verdict is Verdict.LEASE_LOST for verdict in verdicts))
    return [_VERDICTS[verdict] for verdict in verdicts]


def _render_job(job: Job) -> pb.Job:
    message = pb.Job(
        lease=pb.Lease(generation_id=str(job.lease.generation_id), attempt=job.lease.attempt),
        pdf_hash=job.key.pdf_hash,
        page=job.key.page,
        locale=job.key.locale,
        effective_mode=MODES[job.key.effective_mode],
        prompt_version=job.key.prompt_version,
        model=job.key.model,
        images_count=job.images_count,
    )
    message.leased_until.FromDatetime(job.leased_until)
    message.deadline_at.FromDatetime(job.deadline_at)
    message.created_at.FromDatetime(job.created_at)
    message.time_left.FromTimedelta(job.time_left)
    return message
