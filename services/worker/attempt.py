"""One attempt at a job: read the page, explain it, hand in the result or the reason why not."""

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import structlog

from services.runtime.errors import DependencyDown, GlossaError, RelayedError
from services.worker.clients import Registry
from services.worker.deadline import Deadline
from services.worker.delivery import Delivery
from services.worker.domain import (
    Explanation,
    Failure,
    Job,
    ModelCall,
    Page,
    Progress,
    Stage,
    Sticker,
    Usage,
    chunks,
    merge,
)
from services.worker.generation import progress_event
from services.worker.metrics import ATTEMPT_SECONDS, ATTEMPTS, MODEL_CALLS
from services.worker.model import Explainer, ModelError, ModelMismatch
from services.worker.operations import Operations

log = structlog.get_logger()

# Tells the stage to whoever renews the lease.
Report = Callable[[Progress], None]


class Attempts:
    """Runs attempts. Every way in which one can end is delivered, recorded and counted."""

    def __init__(
        self,
        *,
        registry: Registry,
        explainer: Explainer,
        delivery: Delivery,
        operations: Operations,
        prompt_version: str,
    ) -> None:
        self._registry = registry
        self._explainer = explainer
        self._delivery = delivery
        self._operations = operations
        self._prompt_version = prompt_version

    async def run(
        self, job: Job, deadline: Deadline, report: Report, hand_in: Callable[[], None]
    ) -> None:
        """Runs one attempt to its verdict; `hand_in` is called when only delivery is left."""
        started, result = time.perf_counter(), "cancelled"
        try:
            outcome = await self._outcome(job, deadline, report)
            hand_in()
            result = await self._deliver(job, outcome)
        except DependencyDown as error:
            # The lease runs out and the Cache gives the job to somebody else.
            result = "undelivered"
            log.warning("attempt_undelivered", reason=error.reason)
        finally:
            ATTEMPTS.labels(result).inc()
            ATTEMPT_SECONDS.observe(time.perf_counter() - started)
            log.info("attempt_ended", result=result)

    async def _outcome(
        self, job: Job, deadline: Deadline, report: Report
    ) -> tuple[Sticker, ...] | Failure:
        try:
            async with deadline.running():
                return (await self._explain(job, report)).stickers
        except TimeoutError:
            return Failure(
                reason="ATTEMPT_TIMEOUT", message="Explaining the page took longer than allowed."
            )
        except Exception as error:
            return failure_of(error)

    async def _explain(self, job: Job, report: Report) -> Explanation:
        if (job.model, job.prompt_version) != (self._explainer.model, self._prompt_version):
            raise ModelMismatch(f"the job wants {job.model} with prompts {job.prompt_version}")
        await self._tell(job, Progress(stage=Stage.READING), report)
        parts = chunks(await self._read(job))
        explanations: list[Explanation] = []
        for part in parts:
            done = Progress(
                stage=Stage.EXPLAINING,
                done=len(explanations),
                total=len(parts),
                chunks=len(parts),
            )
            await self._tell(job, done, report)
            explanations.append(await self._call_model(job, part))
        return merge(explanations)

    async def _read(self, job: Job) -> Page:
        content = await self._registry.get_page_content(job.pdf_hash, job.page)
        return Page(
            page=job.page,
            text=content.text,
            locale=job.locale,
            neighbours=content.neighbours,
            effective_mode=job.effective_mode,
            images_count=job.images_count,
        )

    async def _call_model(self, job: Job, page: Page) -> Explanation:
        result, usage, started = "error", Usage(), time.perf_counter()
        try:
            explanation = await self._explainer.explain(page)
            result, usage = "ok", explanation.usage
        except ModelError as error:
            result, usage = error.reason.lower(), error.usage
            raise
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        finally:
            MODEL_CALLS.labels(self._explainer.kind, result).inc()
            self._operations.report(
                ModelCall(
                    operation_id=uuid4(),
                    job=job,
                    model=self._explainer.model,
                    usage=usage,
                    duration=timedelta(seconds=time.perf_counter() - started),
                    outcome=result,
                )
            )
        return explanation

    async def _tell(self, job: Job, progress: Progress, report: Report) -> None:
        report(progress)
        await self._delivery.record(progress_event(job.lease, progress))

    async def _deliver(self, job: Job, outcome: tuple[Sticker, ...] | Failure) -> str:
        if isinstance(outcome, Failure):
            return await self._delivery.fail(job.lease, outcome)
        return await self._delivery.complete(job.lease, outcome)


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
    return Failure(reason="INTERNAL_ERROR", message="Something went wrong on our side.")
