"""Every call to the model goes through here: at the pace it allows, timed, counted, reported."""

import asyncio
import time
from collections.abc import Awaitable
from datetime import timedelta
from typing import Protocol, TypeVar
from uuid import uuid4

from services.runtime.tracing import span
from services.worker.domain import Description, Explanation, Image, Job, ModelCall, Page, Usage
from services.worker.metrics import MODEL_CALL_SECONDS, MODEL_CALLS, count_tokens
from services.worker.model import Explainer, ModelError
from services.worker.operations import Operations
from services.worker.throttle import Throttle


class Answered(Protocol):
    """Whatever a call brings, it took tokens."""

    @property
    def usage(self) -> Usage: ...


Result = TypeVar("Result", bound=Answered)


class ModelCalls:
    """The model as attempts use it; Quota hears of every call that was made, failed ones too."""

    def __init__(self, *, explainer: Explainer, throttle: Throttle, operations: Operations) -> None:
        self._explainer = explainer
        self._throttle = throttle
        self._operations = operations

    @property
    def model(self) -> str:
        return self._explainer.model

    @property
    def sees(self) -> bool:
        return self._explainer.sees

    async def explain(self, job: Job, page: Page) -> Explanation:
        async with self._throttle.slot():
            with span("model explain", **{"glossa.model_kind": self._explainer.kind}):
                return await self._reported(job, self._explainer.explain(page))

    async def describe(self, job: Job, image: Image) -> Description:
        async with self._throttle.slot():
            with span("model describe", **{"glossa.model_kind": self._explainer.kind}):
                return await self._reported(job, self._explainer.describe(image))

    async def _reported(self, job: Job, call: Awaitable[Result]) -> Result:
        outcome, usage, started = "error", Usage(), time.perf_counter()
        try:
            result = await call
            outcome, usage = "ok", result.usage
        except ModelError as error:
            outcome, usage = error.reason.lower(), error.usage
            raise
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            seconds, kind = time.perf_counter() - started, self._explainer.kind
            MODEL_CALLS.labels(kind, outcome).inc()
            MODEL_CALL_SECONDS.labels(kind).observe(seconds)
            count_tokens(usage)
            self._operations.report(
                ModelCall(
                    operation_id=uuid4(),
                    job=job,
                    model=self._explainer.model,
                    usage=usage,
                    duration=timedelta(seconds=seconds),
                    outcome=outcome,
                )
            )
        return result
