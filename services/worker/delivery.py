"""Hands in results and failures until there is a verdict, then records what became of them."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from services.runtime.batching import Batcher
from services.runtime.errors import DependencyDown, RelayedError
from services.worker.clients import Jobs
from services.worker.domain import Failure, Lease, Progress, Result, Stage, Verdict
from services.worker.generation import NewEvent, failure_event, progress_event, ready_event
from services.worker.metrics import LEASES_LOST
from services.worker.persistently import persistently
from services.worker.store import EventStore

log = structlog.get_logger()

# Twenty results of the largest allowed size stay below the message limit.
RESULTS_PER_CALL = 20
FAILURES_PER_CALL = 100

Item = TypeVar("Item")


class Delivery:
    """The last step of an attempt; each method answers how it ended."""

    def __init__(self, *, jobs: Jobs, events: EventStore) -> None:
        self._jobs = jobs
        self._events = events
        self._completions = Batcher(_sparing(jobs.complete_jobs), max_batch=RESULTS_PER_CALL)
        # One document may fill a message.
        self._documents = Batcher(_sparing(jobs.complete_jobs), max_batch=1)
        self._failures = Batcher(_sparing(jobs.fail_jobs), max_batch=FAILURES_PER_CALL)

    async def complete(self, lease: Lease, result: Result) -> str:
        batcher = self._documents if result.markdown else self._completions
        verdict = await persistently(lambda: batcher.submit((lease, result)))
        if isinstance(verdict, RelayedError):
            log.error("result_refused", reason=verdict.reason, cause=verdict.message)
            return await self.fail(lease, _refused())
        return await self._settle(verdict, ready_event(lease), "ready")

    async def fail(self, lease: Lease, failure: Failure) -> str:
        verdict = await persistently(lambda: self._failures.submit((lease, failure)))
        if isinstance(verdict, RelayedError):
            log.error("failure_refused", reason=verdict.reason, cause=verdict.message)
            return "undelivered"
        result = "retrying" if verdict is Verdict.RETRYING else "failed"
        return await self._settle(verdict, failure_event(lease, failure, verdict), result)

    async def give_back(self, lease: Lease, *, had_begun: bool) -> str:
        """The job goes on waiting in its old place, and the attempt does not count."""
        try:
            await persistently(lambda: self._jobs.release_jobs([lease]))
        except RelayedError as error:
            log.warning("give_back_refused", reason=error.reason, cause=error.message)
            return "undelivered"
        if had_begun:  # otherwise whoever watches sees it waiting still
            await self.record(progress_event(lease, Progress(stage=Stage.QUEUED)))
        return "given_back"

    async def record(self, event: NewEvent) -> None:
        """Watchers can do without an event; the work does not wait for a database that is away."""
        try:
            await self._events.append_event(event)
        except DependencyDown as error:
            log.warning("event_not_recorded", stage=event.stage, reason=error.reason)

    async def _settle(self, verdict: Verdict, event: NewEvent, result: str) -> str:
        if verdict is Verdict.LEASE_LOST:
            LEASES_LOST.inc()
            return "lease_lost"
        await self.record(event)
        return result


# A refused item is a result of its batch, not the end of its neighbours.
Outcome = Verdict | RelayedError
Send = Callable[[Sequence[Item]], Awaitable[Sequence[Verdict]]]


def _sparing(send: Send[Item]) -> Callable[[Sequence[Item]], Awaitable[Sequence[Outcome]]]:
    """Sends a batch; when the Cache refuses it as a whole, sends its items one by one."""

    async def send_or_split(items: Sequence[Item]) -> Sequence[Outcome]:
        try:
            return await send(items)
        except RelayedError as error:
            if len(items) == 1:
                return [error]
            return [(await send_or_split([item]))[0] for item in items]

    return send_or_split


def _refused() -> Failure:
    return Failure(
        reason="MODEL_BAD_OUTPUT", message="The explanation could not be stored.", permanent=True
    )
