"""SQL that tells how queue and outbox stand, for gauges: bounded, and by index."""

from dataclasses import dataclass

from services.cache.domain import Lane
from services.runtime.database import Database

# Running jobs are few among all generations, and have indexes of their own. What has not come to
# its time yet (a backoff) waits for no worker.
COUNT_QUEUE = """
SELECT lane,
    count(*) FILTER (WHERE state = 'waiting') AS waiting,
    count(*) FILTER (WHERE state = 'leased') AS leased,
    count(*) FILTER (WHERE state = 'stale') AS stale,
    count(*) FILTER (WHERE state = 'backoff') AS backoff,
    coalesce(extract(epoch FROM now() - min(run_after) FILTER (WHERE state = 'waiting')), 0)::float8
        AS oldest_seconds
FROM (
    SELECT lane, run_after,
        CASE WHEN leased_until >= now() THEN 'leased'
             WHEN leased_until < now() THEN 'stale'
             WHEN turn IS NULL THEN 'backoff'
             ELSE 'waiting' END AS state
    FROM cache.generations
    WHERE status = 'generating'
    LIMIT 100000
) AS job
GROUP BY lane
"""

COUNT_OUTBOX = """
SELECT count(*) AS refunds,
    coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8 AS oldest_seconds
FROM (SELECT created_at FROM cache.outbox ORDER BY outbox_id LIMIT 100000) AS due
"""


@dataclass(frozen=True, kw_only=True)
class LaneState:
    """How many jobs of a lane are in which state, and how long the first of them has waited."""

    waiting: int = 0
    leased: int = 0
    stale: int = 0
    backoff: int = 0
    oldest_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class OutboxState:
    refunds: int
    oldest_seconds: float


class GaugeStore:
    """Queue and outbox as an operator sees them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def count_queue(self) -> dict[Lane, LaneState]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(COUNT_QUEUE)
        found = {row["lane"]: dict(row) for row in rows}
        for state in found.values():
            del state["lane"]
        return {lane: LaneState(**found.get(lane, {})) for lane in Lane}

    async def count_outbox(self) -> OutboxState:
        async with self._database.connection() as connection:
            row = await connection.fetchrow(COUNT_OUTBOX)
        assert row is not None
        return OutboxState(refunds=row["refunds"], oldest_seconds=row["oldest_seconds"])
