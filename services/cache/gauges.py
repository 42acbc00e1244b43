"""Keeps the gauges about queue and outbox up to date."""

from dataclasses import dataclass

from services.cache.gauge_store import GaugeStore
from services.cache.metrics import (
    LANES,
    OUTBOX_OLDEST_SECONDS,
    OUTBOX_REFUNDS,
    QUEUE_JOBS,
    QUEUE_OLDEST_SECONDS,
)


@dataclass(frozen=True, kw_only=True)
class Gauges:
    """One look; replicas see the same and tell the same."""

    store: GaugeStore

    async def look(self) -> None:
        for lane, state in (await self.store.count_queue()).items():
            name = LANES[lane]
            QUEUE_OLDEST_SECONDS.labels(name).set(state.oldest_seconds)
            QUEUE_JOBS.labels(name, "waiting").set(state.waiting)
            QUEUE_JOBS.labels(name, "leased").set(state.leased)
            QUEUE_JOBS.labels(name, "stale").set(state.stale)
            QUEUE_JOBS.labels(name, "backoff").set(state.backoff)
        outbox = await self.store.count_outbox()
        OUTBOX_REFUNDS.set(outbox.refunds)
        OUTBOX_OLDEST_SECONDS.set(outbox.oldest_seconds)
