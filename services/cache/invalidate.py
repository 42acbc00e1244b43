"""Takes generations out of service: ready ones are retired, running ones end with refunds."""

from collections.abc import Callable

import structlog

from services.cache.domain import Invalidated, Selection
from services.cache.job_domain import Failure, Verdict
from services.cache.memory import ReadyMemory
from services.cache.queue_store import QueueStore
from services.cache.retirement_store import RetirementStore

log = structlog.get_logger()


class InvalidateGenerations:
    """The use case behind CacheService.InvalidateGenerations; repeating it is harmless."""

    def __init__(
        self,
        *,
        retirements: RetirementStore,
        queue: QueueStore,
        ready: ReadyMemory,
        relay_wake: Callable[[], None],
    ) -> None:
        self._retirements = retirements
        self._queue = queue
        self._ready = ready
        self._relay_wake = relay_wake

    async def count(self, chosen: Selection) -> Invalidated:
        retired, failed = await self._retirements.count_invalid(chosen)
        return Invalidated(retired=retired, failed=failed)

    async def invalidate(self, chosen: Selection, reason: str) -> Invalidated:
        failed = await self._end_running(chosen, reason)
        retired = 0
        # In pieces, so that nobody waits for long; what got ready meanwhile is retired with them.
        while gone := await self._retirements.retire_generations(chosen, reason):
            self._ready.forget(gone)
            retired += len(gone)
        log.info("generations_invalidated", retired=retired, failed=failed, reason=reason)
        return Invalidated(retired=retired, failed=failed)

    async def _end_running(self, chosen: Selection, reason: str) -> int:
        failed = 0
        while leases := await self._retirements.find_running(chosen):
            for lease in leases:
                failure = Failure(
                    lease=lease,
                    reason=reason,
                    message="it was taken out of service before it was ready",
                    permanent=False,
                )
                # A lease taken meanwhile has another number: the next look finds it.
                failed += await self._queue.end_invalid_job(failure) is Verdict.ACCEPTED
            self._relay_wake()
        return failed
