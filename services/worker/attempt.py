"""One attempt at a job: read the page, explain it, hand in the result or the reason why not."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import TypeVar

import structlog

from services.runtime.batching import Batcher
from services.runtime.errors import DependencyDown, GlossaError, RelayedError
from services.worker.clients import Jobs, Registry
from services.worker.domain import (
    Explanation,
    Failure,
    Job,
    Lease,
    Page,
    Progress,
    Stage,
    Sticker,
    Verdict,
    chunks,
    merge,
)
from services.worker.generation import NewEvent, failure_event, progress_event, ready_event
from services.worker.metrics import ATTEMPT_SECONDS, ATTEMPTS, LEASES_LOST, MODEL_CALLS
from services.worker.model import Explainer, ModelError
from services.worker.store import EventStore

log = structlog.get_logger()

# Twenty results of the largest allowed size stay below the message limit.
RESULTS_PER_CALL = 20
FAILURES_PER_CALL = 100
DELIVERY_TRIES = 6
DELIVERY_DELAY = timedelta(milliseconds=500)

# Tells the stage to whoever renews the lease.
Report = Callable[[Progress], None]
Answer = TypeVar("Answer")


class Attempts:
    """Runs attempts. Every way in which one can end is delivered, recorded and counted."""

    def __init__(
        self,
        *,
        registry: Registry,
        jobs: Jobs,
        explainer: Explainer,
        events: EventStore,
        prompt_version: str,
    ) -> None:
        self._registry = registry
        self._explainer = explainer
        self._events = events
        self._prompt_version = prompt_version
        self._completions = Batcher(self._each_alone(jobs.complete_jobs), max_batch=RESULTS_PER_CALL)
        self._failures = Batcher(self._each_alone(jobs.fail_jobs), max_batch=FAILURES_PER_CALL)

    async def run(self, job: Job, report: Report, hand_in: Callable[[], None]) -> None:
        """Runs one attempt to its verdict; `hand_in` is called when only delivery is left."""
        started = time.perf_counter()
        result = "cancelled"
        try:
            outcome = await self._outcome(job, report)
            hand_in()
            result = await self._deliver(job.lease, outcome)
        finally:
            ATTEMPTS.labels(result).inc()
            ATTEMPT_SECONDS.observe(time.perf_counter() - started)
            log.info("attempt_ended", result=result, attempt=job.lease.attempt)

    async def _outcome(self, job: Job, report: Report) -> tuple[Sticker, ...] | Failure:
        try:
            async with asyncio.timeout(max(0.0, job.time_left.total_seconds())):
                return (await self._explain(job, report)).stickers
        except TimeoutError:
            return Failure(
                reason="ATTEMPT_TIMEOUT", message="Explaining the page took longer than allowed."
            )
        except Exception as error:
            failure = failure_of(error)
            log.warning("attempt_failed", reason=failure.reason, cause=_cause(error))
            return failure

    async def _explain(self, job: Job, report: Report) -> Explanation:
        if (job.model, job.prompt_version) != (self._explainer.model, self._prompt_version):
            raise ModelMismatch(f"the job wants {job.model} with prompts {job.prompt_version}")
        await self._tell(job.lease, Progress(stage=Stage.READING), report)
        content = await self._registry.get_page_content(job.pdf_hash, job.page)
        page = Page(
            page=job.page,
            text=content.text,
            locale=job.locale,
            neighbours=content.neighbours,
            effective_mode=job.effective_mode,
            images_count=job.images_count,
        )
        parts, explanations = chunks(page), list[Explanation]()
        for part in parts:
            done = Progress(stage=Stage.EXPLAINING, done=len(explanations), total=len(parts))
            await self._tell(job.lease, done, report)
            explanations.append(await self._call_model(part))
        return merge(explanations)

    async def _call_model(self, page: Page) -> Explanation:
        result = "cancelled"
        try:
            explanation = await self._explainer.explain(page)
            result = "ok"
        except ModelError as error:
            result = error.reason
            raise
        finally:
            MODEL_CALLS.labels(self._explainer.kind, result).inc()
        return explanation

    async def _tell(self, lease: Lease, progress: Progress, report: Report) -> None:
        report(progress)
        await self._record(progress_event(lease, progress))

    async def _record(self, event: NewEvent) -> None:
        """Watchers can do without an event; the work cannot wait for a database that is away."""
        try:
            await self._events.append_event(event)
        except DependencyDown as error:
            log.warning("event_not_recorded", stage=event.stage, reason=error.reason)

    async def _deliver(self, lease: Lease, outcome: tuple[Sticker, ...] | Failure) -> str:
        if not isinstance(outcome, Failure):
            try:
                verdict = await _persistently(lambda: self._completions.submit((lease, outcome)))
            except RelayedError as error:
                log.error("result_refused", reason=error.reason, cause=error.message)
                outcome = Failure(
                    reason="MODEL_BAD_OUTPUT",
                    message="The explanation could not be stored.",
                    permanent=True,
                )
            else:
                return await self._settle(lease, verdict, ready_event(lease), "ready")
        failure = outcome
        verdict = await _persistently(lambda: self._failures.submit((lease, failure)))
        result = "retrying" if verdict is Verdict.RETRYING else "failed"
        return await self._settle(lease, verdict, failure_event(lease, failure, verdict), result)

    async def _settle(
        self, lease: Lease, verdict: Verdict | None, event: NewEvent, result: str
    ) -> str:
        if verdict is None:
            return "undelivered"
        if verdict is Verdict.LEASE_LOST:
            LEASES_LOST.inc()
            return "lease_lost"
        await self._record(event)
        return result
