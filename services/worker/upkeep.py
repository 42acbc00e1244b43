"""What one worker does for all: writes down what failed, sums up what happened, forgets the old."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import structlog

from services.runtime.database import Database
from services.runtime.periodic import periodic
from services.worker.dead_letters import DeadLetters
from services.worker.metrics import HOURS_ROLLED_UP
from services.worker.metrics_store import MetricsStore
from services.worker.sample_store import SampleStore
from services.worker.store import EventStore

log = structlog.get_logger()

ROLL_UP_EVERY = timedelta(minutes=1)
PRUNE_EVERY = timedelta(minutes=10)


class Upkeep:
    """Duties that one worker at a time is enough for; each may be repeated or interrupted."""

    def __init__(
        self,
        *,
        database: Database,
        events: EventStore,
        samples: SampleStore,
        metrics: MetricsStore,
        letters: DeadLetters,
        events_kept: timedelta,
        collect_every: timedelta,
    ) -> None:
        self._database = database
        self._events = events
        self._samples = samples
        self._metrics = metrics
        self._letters = letters
        self._events_kept = events_kept
        self._collect_every = collect_every

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        duties = (
            ("collect_dead_letters", self._collect_every, self._letters.collect),
            ("roll_up", ROLL_UP_EVERY, self.roll_up),
            ("prune", PRUNE_EVERY, self.prune),
        )
        async with AsyncExitStack() as stack:
            for name, every, duty in duties:
                await stack.enter_async_context(
                    periodic(name, every=every, run_once=self._as_leader(name, duty))
                )
            yield

    def _as_leader(
        self, name: str, duty: Callable[[], Awaitable[None]]
    ) -> Callable[[], Awaitable[None]]:
        """Two at once would be harmless, but wasteful."""

        async def run_once() -> None:
            async with self._database.leading(f"worker:{name}") as leading:
                if leading:
                    await duty()

        return run_once

    async def roll_up(self) -> None:
        """Every hour that is over and not summed up yet, however long nobody was here to do it."""
        while hours := await self._metrics.roll_up_day():
            HOURS_ROLLED_UP.inc(hours)
            log.info("hours_rolled_up", count=hours)

    async def prune(self) -> None:
        """Forget what is too old; samples only after they were summed up."""
        await self.roll_up()
        while await self._samples.delete_old_samples():
            pass
        await self._metrics.delete_old_details()
        while await self._events.delete_old_events(self._events_kept):
            pass
        await self._letters.forget_old()
