"""Small duties of every replica, each second: the queue moves on, and old results are forgotten."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta

from services.cache.memory import ReadyMemory
from services.cache.queue import JobBell
from services.cache.queue_store import QueueStore
from services.cache.retirement_store import RetirementStore
from services.runtime.database import Database, listening
from services.runtime.errors import GlossaError
from services.runtime.periodic import periodic

# Notifications hold up every commit of the database for a moment: at most fifty a second from here.
ANNOUNCE_GAP_SECONDS = 0.02
# Longer than any transaction lasts: what was retired while we loaded it is found all the same.
LOOK_BACK = timedelta(seconds=30)
FLUSH_EVERY = timedelta(seconds=30)
RARELY = timedelta(hours=1)


class Upkeep:
    """Keeps this replica in step with the others; polling is relied on, notifications hurry it."""

    def __init__(
        self,
        *,
        queue: QueueStore,
        retirements: RetirementStore,
        ready: ReadyMemory,
        bell: JobBell,
        poll: timedelta,
    ) -> None:
        self._queue = queue
        self._retirements = retirements
        self._ready = ready
        self._bell = bell
        self._poll = poll
        self._looked_at = time.monotonic()
        # Our own notifications come back to us; they are told apart by this name.
        self._name = secrets.token_hex(4)

    @asynccontextmanager
    async def running(self, database: Database) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            start = stack.enter_async_context
            await start(periodic("move_queue", every=self._poll, run_once=self.move_queue))
            forgetting = await start(
                periodic("forget_retired", every=self._poll, run_once=self.forget_retired)
            )
            await start(periodic("flush_accesses", every=FLUSH_EVERY, run_once=self.flush_accesses))
            announcing = await start(
                periodic("announce_jobs", every=RARELY, run_once=self.announce_jobs)
            )
            self._bell.tell_others_with(announcing.wake)
            channels = {"cache_jobs": self._hear_jobs, "cache_retired": lambda _: forgetting.wake()}
            await start(listening(database, channels))
            try:
                yield
            finally:
                with suppress(GlossaError):
                    await self.flush_accesses()

    async def move_queue(self) -> None:
        """Backoffs that are over and waits that were too long."""
        if await self._queue.readmit_due() + await self._queue.age_waiting():
            self._bell.ring_here()

    async def forget_retired(self) -> None:
        """What went out of service since the last look; after a long gap everything, to be sure."""
        looking_at = time.monotonic()
        retired = await self._retirements.list_retired(LOOK_BACK)
        if looking_at - self._looked_at > LOOK_BACK.total_seconds() / 2:
            self._ready.clear()
        self._ready.forget(retired)
        self._looked_at = looking_at

    async def flush_accesses(self) -> None:
        if used := self._ready.take_used():
            await self._retirements.touch_generations(used)

    async def announce_jobs(self) -> None:
        await self._queue.announce_jobs(self._name)
        await asyncio.sleep(ANNOUNCE_GAP_SECONDS)

    def _hear_jobs(self, sender: str) -> None:
        if sender != self._name:
            self._bell.ring_here()
