"""One attempt at a job: explain the page in time, hand in the result or the reason why not."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import structlog

from services.runtime.errors import DependencyDown, GlossaError, RelayedError
from services.worker.convert import Conversion
from services.worker.deadline import Deadline
from services.worker.delivery import Delivery
from services.worker.domain import (
    DOCUMENT_MARKDOWN,
    PAGE_EXPLANATION,
    Failure,
    Job,
    Progress,
    Result,
)
from services.worker.generation import progress_event
from services.worker.image_analysis import Tell
from services.worker.metrics import ATTEMPT_CLASSES, ATTEMPT_SECONDS, ATTEMPTS, count_generation
from services.worker.model import ModelError, ModelMismatch, ModelPaused
from services.worker.pipeline import Pipeline

log = structlog.get_logger()

# Results after which nobody will go on with the generation.
_ENDS = frozenset({"ready", "failed"})

# While workers are being replaced, some jobs are for the others. Held, so that they are not taken
# by us again and again, and not for long, since somebody waits for them.
MISMATCH_HOLD = timedelta(seconds=5)

TIMEOUT = "ATTEMPT_TIMEOUT"
CRASH = "INTERNAL_ERROR"

# Nothing was done for the job: it goes back untouched.
Untouched = ModelPaused | ModelMismatch

# Tells the stage to whoever renews the lease.
Report = Callable[[Progress], None]


class Attempts:
    """Runs attempts. Every way in which one can end is delivered, recorded and counted."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        conversion: Conversion,
        delivery: Delivery,
        mismatch_hold: timedelta = MISMATCH_HOLD,
    ) -> None:
        self._pipeline = pipeline
        self._conversion = conversion
        self._delivery = delivery
        self._mismatch_hold = mismatch_hold

    async def run(
        self, job: Job, deadline: Deadline, report: Report, hand_in: Callable[[], None]
    ) -> None:
        """Runs one attempt to its verdict; `hand_in` is called when only delivery is left."""
        started, result, chunks = time.perf_counter(), "cancelled", 1

        def note(progress: Progress) -> None:
            nonlocal chunks
            chunks = max(chunks, progress.chunks)
            report(progress)

        try:
            outcome = await self._outcome(job, deadline, note)
            ATTEMPT_CLASSES.labels(class_of(outcome)).inc()
            hand_in()
            result = await self._deliver(job, outcome)
        except DependencyDown as error:
            # The lease runs out and the Cache gives the job to somebody else.
            result = "undelivered"
            log.warning("attempt_undelivered", reason=error.reason)
        finally:
            seconds = time.perf_counter() - started
            ATTEMPTS.labels(result).inc()
            ATTEMPT_SECONDS.observe(seconds)
            if result == "ready":
                count_generation(job, chunks=chunks, seconds=seconds)
            log.info("attempt_ended", result=result)

    async def _outcome(
        self, job: Job, deadline: Deadline, report: Report
    ) -> Result | Failure | Untouched:
        try:
            async with deadline.running():
                return await self._make(job, lambda progress: self._tell(job, progress, report))
        except TimeoutError:
            return Failure(reason=TIMEOUT, message="It took longer than allowed.")
        except ModelPaused as pause:
            return pause
        except ModelMismatch as mismatch:
            log.warning("job_is_for_another_worker", cause=str(mismatch))
            await asyncio.sleep(self._mismatch_hold.total_seconds())
            return mismatch
        except Exception as error:
            return failure_of(error)

    async def _make(self, job: Job, tell: Tell) -> Result:
        if job.kind == PAGE_EXPLANATION:
            return Result(stickers=await self._pipeline.explain(job, tell))
        if job.kind == DOCUMENT_MARKDOWN:
            return Result(markdown=await self._conversion.convert(job, tell))
        raise ModelMismatch(f"this worker does not make {job.kind}")

    async def _tell(self, job: Job, progress: Progress, report: Report) -> None:
        report(progress)
        await self._delivery.record(progress_event(job.lease, progress))

    async def _deliver(self, job: Job, outcome: Result | Failure | Untouched) -> str:
        if isinstance(outcome, Untouched):
            had_begun = isinstance(outcome, ModelPaused)
            return await self._delivery.give_back(job.lease, had_begun=had_begun)
        if isinstance(outcome, Failure):
            result = await self._delivery.fail(job.lease, outcome)
        else:
            result = await self._delivery.complete(job.lease, outcome)
        if result in _ENDS:
            await self._pipeline.forget(job)
        return result


def class_of(outcome: Result | Failure | Untouched) -> str:
    """What an attempt came to, in a word for metrics."""
    if isinstance(outcome, Result):
        return "ok"
    if isinstance(outcome, Untouched):
        return "untouched"
    if outcome.reason in (TIMEOUT, CRASH):
        return "timeout" if outcome.reason == TIMEOUT else "crash"
    return "permanent" if outcome.permanent else "transient"


def failure_of(error: Exception) -> Failure:
    """What to tell about an error: its reason, whether trying again can help, and no internals."""
    if isinstance(error, ModelError):
        log.warning("model_failed", reason=error.reason, cause=str(error))
        return Failure(
            reason=error.reason,
            message=error.message,
            permanent=error.permanent,
            retry_after=error.retry_after,
        )
    if isinstance(error, RelayedError) and error.code == "NOT_FOUND":
        message = "The document is no longer there."
        return Failure(reason="DOCUMENT_GONE", message=message, permanent=True)
    if isinstance(error, GlossaError):
        permanent = error.code == "INVALID_ARGUMENT"
        return Failure(reason=error.reason, message=error.message, permanent=permanent)
    log.error("attempt_crashed", exc_info=error)
    return Failure(reason=CRASH, message="Something went wrong on our side.")
