"""SQL that tells how many generations stand at once, for workers whose clients watch them."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg

from services.cache.domain import Generation, Queue
from services.cache.generation_store import generation_from, status_columns
from services.runtime.database import Database

# One look at the front of the queue gives everybody's place; READ_QUEUE does it for one. Results
# stay where they are: they are large, and wanted once.
READ_STATUSES = f"""
WITH front AS (
    SELECT generation_id, row_number() OVER (ORDER BY lane, turn, run_after) AS position
    FROM (
        SELECT generation_id, lane, turn, run_after
        FROM cache.generations
        WHERE status = 'generating' AND turn IS NOT NULL
          AND (leased_until IS NULL OR leased_until < now())
        ORDER BY lane, turn, run_after
        LIMIT 1000
    ) AS waiting
), working AS (
    SELECT count(*) AS number FROM (
        SELECT FROM cache.generations
        WHERE status = 'generating' AND turn IS NOT NULL AND leased_until >= now()
        LIMIT 1000
    ) AS leased
)
SELECT {status_columns}, NULL::bytea AS result, NULL AS stickers,
    CASE WHEN status = 'generating' AND (leased_until IS NULL OR leased_until < now())
         THEN coalesce(front.position, (SELECT count(*) FROM front) + 1)
    END AS position,
    run_after - now() AS delay,
    working.number AS working
FROM cache.generations
CROSS JOIN working
LEFT JOIN front USING (generation_id)
WHERE generation_id = ANY($1::uuid[])
"""


class StatusStore:
    """Where generations stand, without what came of them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_statuses(
        self, generation_ids: Sequence[UUID], *, seconds_each: float
    ) -> list[tuple[Generation, Queue]]:
        """Each with its place in the queue, when a generation takes about `seconds_each`."""
        async with self._database.connection() as connection:
            rows = await connection.fetch(READ_STATUSES, generation_ids)
        return [(generation_from(row), _queue(row, seconds_each)) for row in rows]


def _queue(row: asyncpg.Record, seconds_each: float) -> Queue:
    position = row["position"]
    if position is None:
        return Queue()
    wait = timedelta(seconds=seconds_each * position / max(1, row["working"]))
    return Queue(position=position, estimated_wait=max(wait, row["delay"]))
