"""Puts right what crashes leave behind; every step may be repeated, interrupted or raced."""

from collections.abc import Awaitable, Callable

import structlog

from services.cache.job_domain import Failure, Lease, Verdict
from services.cache.metrics import SWEEPS, SWEPT
from services.cache.queue_store import QueueStore
from services.cache.request_store import RequestStore
from services.cache.response_store import ResponseStore
from services.cache.retirement_store import RetirementStore
from services.runtime.database import Database

log = structlog.get_logger()

LEADER = "cache:sweep"


class Sweep:
    """One pass over everything that may be stuck or too old."""

    def __init__(
        self,
        *,
        database: Database,
        queue: QueueStore,
        requests: RequestStore,
        retirements: RetirementStore,
        responses: ResponseStore,
    ) -> None:
        self._database = database
        self._queue = queue
        self._requests = requests
        self._retirements = retirements
        self._responses = responses

    async def run_once(self) -> None:
        """Sweep, unless another replica is at it; two at once would be harmless, but wasteful."""
        async with self._database.leading(LEADER) as leading:
            if leading:
                await self._sweep()
        SWEEPS.labels("us" if leading else "another").inc()

    async def _sweep(self) -> None:
        await self._end(
            await self._queue.find_spent(), "ATTEMPTS_SPENT", "every attempt was cut short"
        )
        await self._end(
            await self._queue.find_overdue(), "QUEUE_TIMEOUT", "no worker took it up in time"
        )
        await _repeat("intent", self._requests.abort_stale_intents)
        await _repeat("old_request", self._retirements.delete_settled_requests)
        await _repeat("old_generation", self._retirements.delete_ended)
        await _repeat("expired_response", self._responses.delete_expired)

    async def _end(self, leases: list[Lease], reason: str, message: str) -> None:
        for lease in leases:
            failure = Failure(lease=lease, reason=reason, message=message, permanent=False)
            # Fenced like a worker's failure: whoever was faster wins.
            if await self._queue.end_abandoned_job(failure) is Verdict.ACCEPTED:
                SWEPT.labels(reason.lower()).inc()
                log.info("lock_released", generations=[str(lease.generation_id)], status=reason)


async def _repeat(what: str, clear_some: Callable[[], Awaitable[int]]) -> None:
    """Clear away piece by piece until nothing is left."""
    while count := await clear_some():
        SWEPT.labels(what).inc(count)
        log.info("swept", what=what, count=count)
