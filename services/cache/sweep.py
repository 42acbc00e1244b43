"""Puts right what crashes leave behind; every step may be repeated, interrupted or raced."""

import structlog
from prometheus_client import Counter

from services.cache.domain import Failure, Lease, Verdict
from services.cache.job_store import JobStore
from services.cache.request_store import RequestStore

log = structlog.get_logger()

SWEPT = Counter(
    "glossa_cache_swept_total",
    "What the sweep put right: generations ended and intents given up.",
    ["what"],
)


class Sweep:
    """One pass over everything that may be stuck."""

    def __init__(self, *, jobs: JobStore, requests: RequestStore) -> None:
        self._jobs = jobs
        self._requests = requests

    async def run_once(self) -> None:
        await self._end(
            await self._jobs.find_spent(), "ATTEMPTS_SPENT", "every attempt was cut short"
        )
        await self._end(
            await self._jobs.find_overdue(), "QUEUE_TIMEOUT", "no worker took it up in time"
        )
        aborted = await self._requests.abort_stale_intents()
        if aborted:
            SWEPT.labels("intent").inc(aborted)
            log.info("intents_aborted", count=aborted)

    async def _end(self, leases: list[Lease], reason: str, message: str) -> None:
        for lease in leases:
            failure = Failure(lease=lease, reason=reason, message=message, permanent=True)
            # Fenced like a worker's failure: whoever was faster wins.
            if await self._jobs.end_abandoned_job(failure) is Verdict.ACCEPTED:
                SWEPT.labels(reason.lower()).inc()
                log.info("generation_swept", generation=str(lease.generation_id), reason=reason)
