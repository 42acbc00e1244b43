"""Takes jobs from the Cache, keeps their leases alive, and stops work that is no longer ours."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from services.runtime import request
from services.runtime.errors import GlossaError
from services.runtime.periodic import Periodic, periodic
from services.runtime.tracing import span
from services.worker.attempt import Attempts
from services.worker.clients import Jobs
from services.worker.deadline import Deadline
from services.worker.domain import Job, Lease, Progress
from services.worker.metrics import (
    HEARTBEAT_FAILURES,
    HEARTBEATS,
    LEASES_LOST,
    RUNNING_ATTEMPTS,
)
from services.worker.persistently import persistently

log = structlog.get_logger()

FIRST_RECONNECT = timedelta(milliseconds=100)
LONGEST_RECONNECT = timedelta(seconds=5)
# How long a drain waits for the verdict on results that are handed in.
HAND_IN = timedelta(seconds=5)
# How long a drain tries to give jobs back: worker and Cache may be restarted together.
GIVE_BACK = timedelta(seconds=6)
# How long a drain waits for the Cache to end the stream of jobs.
STREAM_END = timedelta(seconds=5)


@dataclass(kw_only=True)
class _Running:
    """An attempt under way: what renewals tell about it, and whether it may still be stopped."""

    task: "asyncio.Task[None]"
    deadline: Deadline
    progress: Progress | None = None
    handing_in: bool = False


class LeaseLoop:
    """Runs as many attempts at a time as it has credits for."""

    def __init__(
        self, *, jobs: Jobs, attempts: Attempts, concurrency: int, renew_every: timedelta
    ) -> None:
        self._jobs = jobs
        self._attempts = attempts
        self._concurrency = concurrency
        self._renew_every = renew_every
        self._running: dict[Lease, _Running] = {}
        self._credits: asyncio.Queue[int | None] = asyncio.Queue()
        self._draining = asyncio.Event()
        self._renewal: Periodic | None = None
        self._taking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Takes jobs until the block ends; attempts still running then are given up."""
        async with self.renewing():
            self._taking = asyncio.create_task(self._take_jobs(), name="take_jobs")
            try:
                yield
            finally:
                await _stop(self._taking, *(one.task for one in self._running.values()))

    async def drain(self, grace: timedelta) -> None:
        """Takes no more jobs and lets running attempts finish; the rest is given back."""
        self._draining.set()
        self._credits.put_nowait(None)
        running = {lease: running.task for lease, running in self._running.items()}
        if running:
            await asyncio.wait(running.values(), timeout=grace.total_seconds())
        # What is done is not thrown away for the sake of its verdict.
        if handing_in := [one.task for one in self._running.values() if one.handing_in]:
            await asyncio.wait(handing_in, timeout=HAND_IN.total_seconds())
        left = [lease for lease, task in running.items() if not task.done()]
        await _stop(*running.values())
        await self._release(left)
        if self._taking is not None:
            # Jobs that were on their way are given back as they come; then the stream ends.
            await asyncio.wait([self._taking], timeout=STREAM_END.total_seconds())

    async def run_until_empty(self) -> int:
        """Takes jobs until there are none and all have ended; answers how many it took.

        Whatever stops it leaves running attempts to `drain`.
        """
        taken, empty = 0, False
        while not empty:
            while (free := self._concurrency - len(self._running)) == 0:
                await self._wait_for_attempts(asyncio.FIRST_COMPLETED)
            found = await self._take_some(free)
            taken, empty = taken + found, found < free
        while self._running:
            await self._wait_for_attempts(asyncio.ALL_COMPLETED)
        return taken

    async def _take_some(self, most: int) -> int:
        """Takes as many jobs, or all there are; answers how many.

        On a stream of its own: gRPC for Python takes it for a failure when we send credits while
        the Cache ends the stream because there is nothing left.
        """
        found, done = 0, asyncio.Event()

        async def credits_once() -> AsyncIterator[int]:
            yield most
            await done.wait()

        async with aclosing(self._jobs.lease_jobs(credits_once(), until_empty=True)) as jobs:
            try:
                async for job in jobs:
                    self._start(job)
                    found += 1
                    if found == most:
                        break
            finally:
                done.set()
        return found

    async def _wait_for_attempts(self, which: str) -> None:
        tasks = [running.task for running in self._running.values()]
        await asyncio.wait(tasks, return_when=which)

    @asynccontextmanager
    async def renewing(self) -> AsyncIterator[None]:
        """Keeps the leases of running attempts alive until the block ends."""
        async with periodic(
            "renew_leases", every=self._renew_every, run_once=self._renew_leases
        ) as self._renewal:
            yield

    async def _release(self, leases: Sequence[Lease]) -> None:
        """What cannot be given back now comes back by itself when its lease runs out."""
        if not leases:
            return
        try:
            async with asyncio.timeout(GIVE_BACK.total_seconds()):
                await persistently(lambda: self._jobs.release_jobs(leases))
            log.info("jobs_released", count=len(leases))
        except TimeoutError:
            log.warning("jobs_not_released", count=len(leases), reason="TIMEOUT")
        except GlossaError as error:
            log.warning("jobs_not_released", count=len(leases), reason=error.reason)

    async def _take_jobs(self) -> None:
        delay = FIRST_RECONNECT
        while not self._draining.is_set():
            try:
                async for job in self._jobs.lease_jobs(
                    self._stream_of_credits(), heartbeat=self._renew_every
                ):
                    delay = FIRST_RECONNECT
                    if self._draining.is_set():  # came while the stream was closing
                        await self._release([job.lease])
                    else:
                        self._start(job)
                        self._credits.put_nowait(0)  # tells that it has arrived
            except GlossaError as error:
                log.warning("lease_stream_broke", reason=error.reason)
            except Exception:
                log.exception("lease_stream_failed")
            # Spread, so that a restarted Cache does not meet all workers at once.
            spread = delay.total_seconds() * random.uniform(0.5, 1.5)  # noqa: S311
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), spread)
            delay = min(2 * delay, LONGEST_RECONNECT)

    async def _stream_of_credits(self) -> AsyncIterator[int]:
        """Credits of one stream: what is free at its start, then one for each job that ends.

        None at all now and then: the Cache gives no jobs to a worker that seems frozen.
        """
        source: asyncio.Queue[int | None] = asyncio.Queue()
        self._credits = source
        if self._draining.is_set():  # between two streams, where nobody tells this one to end
            return
        yield max(0, self._concurrency - len(self._running))
        while True:
            count: int | None = 0
            with suppress(TimeoutError):
                async with asyncio.timeout(self._renew_every.total_seconds()):
                    count = await source.get()
            if count is None:
                return
            yield count

    def _start(self, job: Job) -> None:
        deadline = Deadline(job.time_left)
        task = asyncio.create_task(
            self._run(job, deadline), name=f"attempt {job.lease.generation_id}"
        )
        self._running[job.lease] = _Running(task=task, deadline=deadline)
        RUNNING_ATTEMPTS.set(len(self._running))
        task.add_done_callback(lambda _: self._ended(job.lease))

    def _ended(self, lease: Lease) -> None:
        self._running.pop(lease, None)
        RUNNING_ATTEMPTS.set(len(self._running))
        self._credits.put_nowait(1)

    async def _run(self, job: Job, deadline: Deadline) -> None:
        lease = job.lease
        request.request_id.set(f"job-{lease.generation_id}-{lease.attempt}")
        structlog.contextvars.bind_contextvars(
            generation=str(lease.generation_id), attempt=lease.attempt
        )
        try:
            with span("attempt", parent=job.traceparent, **{"glossa.attempt": lease.attempt}):
                await self._attempts.run(
                    job,
                    deadline,
                    report=lambda progress: self._report(lease, progress),
                    hand_in=lambda: self._hand_in(lease),
                )
        except Exception:
            log.exception("attempt_failed")

    def _report(self, lease: Lease, progress: Progress) -> None:
        """A new stage is told at once, together with every other lease."""
        self._running[lease].progress = progress
        if self._renewal is not None:
            self._renewal.wake()

    def _hand_in(self, lease: Lease) -> None:
        self._running[lease].handing_in = True

    async def _renew_leases(self) -> None:
        leases = {lease: running.progress for lease, running in self._running.items()}
        if not leases:
            return
        HEARTBEATS.inc()
        try:
            with HEARTBEAT_FAILURES.count_exceptions():
                kept = await self._jobs.renew_leases(leases)
        except GlossaError as error:
            # The Cache decides when it is back; until then the work goes on.
            log.warning("leases_not_renewed", reason=error.reason, leases=len(leases))
            return
        newest = {lease.generation_id: lease.attempt for lease in sorted(leases, key=_attempt)}
        for lease in leases:
            # We may have been given a later attempt of what we still work on: that one is kept.
            if lease.generation_id not in kept or lease.attempt < newest[lease.generation_id]:
                self._give_up(lease)
            elif (time_left := kept[lease.generation_id]) and lease in self._running:
                self._running[lease].deadline.grant(time_left)

    def _give_up(self, lease: Lease) -> None:
        """Another attempt owns the generation: stop at once, so that nothing more is written."""
        running = self._running.get(lease)
        # While a result is handed in, the lease may be gone because the result was accepted.
        if running is None or running.handing_in:
            return
        LEASES_LOST.inc()
        log.warning("lease_lost", generation=str(lease.generation_id), attempt=lease.attempt)
        running.task.cancel()


def _attempt(lease: Lease) -> int:
    return lease.attempt


async def _stop(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
