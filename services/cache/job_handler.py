"""JobService as gRPC sees it: hands jobs to workers and takes their results."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Hashable,
    Sequence,
)
from contextlib import aclosing, suppress
from datetime import timedelta

import structlog
from glossa.cache.v1 import cache_pb2
from glossa.cache.v1 import jobs_pb2 as pb

from services.cache.failed_store import FailedStore
from services.cache.follow_handler import FollowHandler
from services.cache.job_domain import Failure, Job, Lease, Progress, Result, Verdict
from services.cache.job_store import JobStore
from services.cache.metrics import (
    LEASE_RENEWALS,
    LEASE_STREAMS,
    LEASES_LOST,
    LOCK_FAILURES,
)
from services.cache.queue import JobBell, Pace
from services.cache.status_store import StatusStore
from services.cache.wire import MODES, check_result, pack_result
from services.runtime.auth import allow
from services.runtime.errors import DependencyDown, InvalidInput
from services.runtime.interceptors import Context
from services.runtime.timestamps import fill_timestamp
from services.runtime.validation import parse_each, parse_text, parse_uuid, require

log = structlog.get_logger()


MAX_CREDITS = 500
MAX_BATCH = 500
MAX_CHUNKS = 1000
MAX_RETRY_AFTER_SECONDS = 86_400
MAX_HEARTBEAT_SECONDS = 3600
# How long a stream that ends here waits to hear which jobs have arrived.
ACKNOWLEDGE_SECONDS = 1.0

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


class JobHandler(FollowHandler):
    """Speaks protobuf for workers."""

    def __init__(
        self,
        store: JobStore,
        *,
        statuses: StatusStore,
        failed: FailedStore,
        bell: JobBell,
        pace: Pace,
        relay_wake: Callable[[], None],
        poll_seconds: float,
    ) -> None:
        super().__init__(statuses=statuses, failed=failed, bell=bell, pace=pace)
        self._store = store
        self._relay_wake = relay_wake
        self._poll_seconds = poll_seconds

    @allow("worker")
    async def LeaseJobs(
        self, request_iterator: AsyncIterator[pb.LeaseJobsRequest], context: Context
    ) -> AsyncIterator[pb.LeaseJobsResponse]:
        with self._bell.listen() as woken, LEASE_STREAMS.track_inprogress():
            worker = _LeaseStream(woken)
            reading = asyncio.create_task(worker.read(request_iterator))
            try:
                while not (worker.done or self._bell.draining):
                    # Closed here and now: what was not taken is given back at once.
                    async with aclosing(self._lease(worker)) as messages:
                        async for message in messages:
                            yield message
                    await worker.wait(self._poll_seconds)
                await worker.wait_for_acknowledgement()
                if reading.done():
                    reading.result()  # a bad message from the worker is told to it
            finally:
                reading.cancel()
                if worker.handed:
                    # It may have arrived all the same: then its worker finds the lease lost.
                    await asyncio.shield(self._release(list(worker.handed)))

    @allow("worker")
    async def RenewLeases(
        self, request: pb.RenewLeasesRequest, context: Context
    ) -> pb.RenewLeasesResponse:
        _require_worker(request.worker_id, len(request.leases), "leases")
        renewals = parse_each("leases", request.leases, _progress)
        kept, lost = await self._store.renew_leases(renewals)
        LEASE_RENEWALS.inc(len(kept))
        LEASES_LOST.labels("renew").inc(lost)
        _log_leases("heartbeat_extended", [one.lease for one in kept], logging.DEBUG)
        response = pb.RenewLeasesResponse(kept=[str(one.lease.generation_id) for one in kept])
        for one in kept:
            response.time_left.add().FromTimedelta(one.time_left)
        return response

    @allow("worker")
    async def CompleteJobs(
        self, request: pb.CompleteJobsRequest, context: Context
    ) -> pb.CompleteJobsResponse:
        _require_worker(request.worker_id, len(request.items), "items")
        results = parse_each("items", request.items, _result)
        accepted = await self._store.complete_jobs(dict(reversed(results)))
        for seconds in accepted.values():
            self._pace.add(seconds)
        leases = [lease for lease, _ in results]
        verdicts = _verdicts(leases, set(accepted))
        done = zip(leases, verdicts, strict=True)
        ready = [lease for lease, verdict in done if verdict is Verdict.ACCEPTED]
        _log_leases("lock_released", ready, status="ready")
        _log_skipped(leases, verdicts)
        return pb.CompleteJobsResponse(verdicts=_render_verdicts(verdicts, "complete"))

    @allow("worker")
    async def FailJobs(self, request: pb.FailJobsRequest, context: Context) -> pb.FailJobsResponse:
        _require_worker(request.worker_id, len(request.items), "items")
        failures = parse_each("items", request.items, _failure)
        verdicts = []
        for failure in failures:
            verdict = await self._store.fail_job(failure)
            verdicts.append(verdict)
            if verdict is not Verdict.LEASE_LOST:
                status = "retrying" if verdict is Verdict.RETRYING else "failed"
                _log_leases("lock_released", [failure.lease], status=status)
        self._relay_wake()
        return pb.FailJobsResponse(verdicts=_render_verdicts(verdicts, "fail"))

    @allow("worker")
    async def ReleaseJobs(
        self, request: pb.ReleaseJobsRequest, context: Context
    ) -> pb.ReleaseJobsResponse:
        _require_worker(request.worker_id, len(request.leases), "leases")
        leases = parse_each("leases", request.leases, _lease)
        released = await self._release(leases)
        verdicts = _verdicts(leases, released)
        return pb.ReleaseJobsResponse(verdicts=_render_verdicts(verdicts, "release"))

    async def _lease(self, worker: "_LeaseStream") -> AsyncGenerator[pb.LeaseJobsResponse, None]:
        """Jobs for a worker. Of those sent one by one, what it does not take is given back."""
        if worker.credits == 0 or worker.seems_frozen:
            return
        with LOCK_FAILURES.labels("lease").count_exceptions(DependencyDown):
            jobs = await self._store.lease_jobs(worker.worker_id, min(worker.credits, MAX_BATCH))
        worker.credits -= len(jobs)
        worker.found_nothing = not jobs
        if not jobs:
            return
        _log_leases("lock_acquired", [job.lease for job in jobs], worker=worker.worker_id)
        batch = _render_jobs(jobs)
        if worker.batched:
            worker.hand_over([job.lease for job in jobs])
            yield batch
            return
        handed = 0
        try:
            for message in batch.jobs:
                yield pb.LeaseJobsResponse(job=message)
                handed += 1
        finally:
            # The one that was on its way may have arrived: its lease decides.
            if left := [job.lease for job in jobs[handed + 1 :]]:
                await asyncio.shield(self._release(left))

    async def _release(self, leases: Sequence[Lease]) -> set[Lease]:
        released = await self._store.release_jobs(leases)
        _log_leases("lock_released", released, status="released")
        if released:
            self._bell.ring()
        return released


class _LeaseStream:
    """One worker's stream: who it is, how many more jobs it takes, whether it has said goodbye."""

    def __init__(self, woken: asyncio.Event) -> None:
        self._woken = woken
        self.worker_id = ""
        self.credits = 0
        self.ended = False
        self.until_empty = False
        self.batched = False
        self.found_nothing = False
        self._heartbeat_seconds = 0.0
        self._heard_at = time.monotonic()
        # Jobs on their way, in the order in which they were sent.
        self.handed: deque[Lease] = deque()
        self._acknowledges = False
        self._received = 0
        self._all_received = asyncio.Event()

    @property
    def seems_frozen(self) -> bool:
        """Its connection lives on without it: whoever promised to speak has been silent."""
        silence = time.monotonic() - self._heard_at
        return 0 < 2 * self._heartbeat_seconds < silence

    def hand_over(self, leases: Sequence[Lease]) -> None:
        if self._acknowledges:
            self.handed.extend(leases)
            self._all_received.clear()

    async def wait_for_acknowledgement(self) -> None:
        """What has arrived is not taken back, if its worker tells so within reason."""
        if self.handed and not self.ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(ACKNOWLEDGE_SECONDS):
                    await self._all_received.wait()

    @property
    def done(self) -> bool:
        return self.ended or (self.until_empty and self.found_nothing)

    async def read(self, requests: AsyncIterator[pb.LeaseJobsRequest]) -> None:
        try:
            async for request in requests:
                parse_text("worker_id", request.worker_id, most=128)
                in_range = 0 <= request.credits <= MAX_CREDITS
                require(in_range, "credits", f"must be 0 to {MAX_CREDITS}")
                self.worker_id = request.worker_id
                self.until_empty = request.until_empty
                self.batched = request.batched
                self.credits = min(self.credits + request.credits, 10 * MAX_CREDITS)
                self._hear(request)
                self._woken.set()
        finally:
            self.ended = True
            self._woken.set()

    def _hear(self, request: pb.LeaseJobsRequest) -> None:
        promised = request.heartbeat_every.seconds + request.heartbeat_every.nanos / 1e9
        in_range = 0 <= promised <= MAX_HEARTBEAT_SECONDS
        require(in_range, "heartbeat_every", f"must be 0 to {MAX_HEARTBEAT_SECONDS} seconds")
        self._heartbeat_seconds = promised
        self._heard_at = time.monotonic()
        self._acknowledges = request.acknowledges
        while self.handed and self._received < request.received:
            self.handed.popleft()
            self._received += 1
        if not self.handed:
            self._all_received.set()

    async def wait(self, poll_seconds: float) -> None:
        """Until somebody rings, or long enough to look for work without being told."""
        if self.done:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(poll_seconds):
                await self._woken.wait()
        self._woken.clear()


def _require_worker(worker_id: str, size: int, field: str) -> None:
    parse_text("worker_id", worker_id, most=128)
    require(size <= MAX_BATCH, field, f"must hold at most {MAX_BATCH} items")


def _verdicts(leases: Sequence[Lease], accepted: set[Lease]) -> list[Verdict]:
    """One verdict for each, in order; the second of two alike comes too late."""
    verdicts = []
    for lease in leases:
        verdicts.append(Verdict.ACCEPTED if lease in accepted else Verdict.LEASE_LOST)
        accepted.discard(lease)
    return verdicts


def _log_leases(
    event: str, leases: Collection[Lease], level: int = logging.INFO, **more: str
) -> None:
    """Names are put together only for somebody who reads them."""
    if leases and log.is_enabled_for(level):
        names = [f"{lease.generation_id}#{lease.attempt}" for lease in leases]
        log.log(level, event, generations=names, **more)


def _log_skipped(leases: Sequence[Lease], verdicts: Sequence[Verdict]) -> None:
    """The work was done twice; only one result is kept."""
    pairs = zip(leases, verdicts, strict=True)
    lost = [lease for lease, verdict in pairs if verdict is Verdict.LEASE_LOST]
    _log_leases("lock_skipped_duplicate", lost)


def _lease(message: pb.Lease) -> Lease:
    require(message.attempt >= 1, "attempt", "must be at least 1")
    return Lease(parse_uuid("generation_id", message.generation_id), message.attempt)


def _lease_of(
    message: "pb.LeaseProgress | pb.CompleteJobsRequest.Item | pb.FailJobsRequest.Item",
) -> Lease:
    try:
        return _lease(message.lease)
    except InvalidInput as error:
        raise error.within("lease") from None


def _progress(message: pb.LeaseProgress) -> Progress:
    stage = None
    if message.stage:
        require(message.stage in _STAGES, "stage", "must be a stage of a running attempt")
        stage = _STAGES[message.stage]
    require(0 <= message.done <= message.total, "done", "must be 0 to total")
    require(0 <= message.chunks <= MAX_CHUNKS, "chunks", f"must be 0 to {MAX_CHUNKS}")
    return Progress(
        lease=_lease_of(message),
        stage=stage,
        done=message.done,
        total=message.total,
        chunks=message.chunks,
    )


def _result(message: pb.CompleteJobsRequest.Item) -> tuple[Lease, Result]:
    check_result(message)
    return _lease_of(message), Result(pack_result(message), is_document=bool(message.markdown))


def _failure(message: pb.FailJobsRequest.Item) -> Failure:
    seconds = message.retry_after.seconds
    in_range = 0 <= seconds <= MAX_RETRY_AFTER_SECONDS
    require(in_range, "retry_after", "must be 0 to 86400 seconds")
    return Failure(
        lease=_lease_of(message),
        reason=parse_text("reason", message.reason, most=64),
        message=parse_text("message", message.message, least=0, most=1000),
        permanent=message.permanent,
        retry_after=timedelta(seconds=seconds),
    )


def _render_verdicts(verdicts: Sequence[Verdict], call: str) -> list["pb.JobVerdict.ValueType"]:
    LEASES_LOST.labels(call).inc(sum(verdict is Verdict.LEASE_LOST for verdict in verdicts))
    return [_VERDICTS[verdict] for verdict in verdicts]


def _render_jobs(jobs: Sequence[Job]) -> pb.LeaseJobsResponse:
    """Jobs of one batch are much alike, and copying is cheaper than filling in every field."""
    patterns: dict[Hashable, pb.Job] = {}
    batch = pb.LeaseJobsResponse()
    for job in jobs:
        alike = (*job.key[3:], job.key.kind, job.images_count, job.leased_until, job.deadline_at)
        pattern = patterns.get(alike)
        if pattern is None:
            pattern = patterns[alike] = _render_pattern(job)
        message = batch.jobs.add()
        message.CopyFrom(pattern)
        lease = message.lease
        lease.generation_id, lease.attempt = str(job.lease.generation_id), job.lease.attempt
        message.pdf_hash, message.page = job.key.pdf_hash, job.key.page
        if job.traceparent:
            message.traceparent = job.traceparent
        fill_timestamp(message.created_at, job.created_at)
    return batch


def _render_pattern(job: Job) -> pb.Job:
    """What a job has in common with others."""
    message = pb.Job(
        kind=job.key.kind,
        scope=job.key.scope,
        locale=job.key.locale,
        effective_mode=MODES[job.key.effective_mode],
        prompt_version=job.key.prompt_version,
        model=job.key.model,
        images_count=job.images_count,
    )
    fill_timestamp(message.leased_until, job.leased_until)
    fill_timestamp(message.deadline_at, job.deadline_at)
    message.time_left.FromTimedelta(job.time_left)
    return message
