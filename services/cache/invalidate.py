"""Takes generations out of service: ready ones are retired, running ones end with refunds."""

from collections.abc import Callable
from uuid import UUID

import structlog

from services.cache.domain import DOCUMENT_COLLECTED, Invalidated, Selection
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
        await self._retirements.forget_failures(chosen)
        failed = await self._end_running(chosen, reason)
        retired = await self._retire_ready(chosen, reason)
        log.info("generations_invalidated", retired=retired, failed=failed, reason=reason)
        return Invalidated(retired=retired, failed=failed)

    async def _retire_ready(self, chosen: Selection, reason: str) -> int:
        """In pieces, so that nobody waits for long; after the running ones: those that got ready
        meanwhile are among these.
        """
        retired, last = 0, UUID(int=0)
        # The text may be wrong wherever it stands, unless it is only this document that went.
        family = reason != DOCUMENT_COLLECTED
        while found := await self._retirements.choose_ready(chosen, after=last):
            # Again until nothing is left: a copy may have been taken while we looked.
            while gone := await self._retirements.retire_generations(found, reason, family=family):
                self._ready.forget(gone)
                retired += len(gone)
            last = found[-1]
        return retired

    async def _end_running(self, chosen: Selection, reason: str) -> int:
        failed = 0
        # What begins from now on is meant to be made anew.
        until = await self._retirements.read_clock()
        while leases := await self._retirements.find_running(chosen, until=until):
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
