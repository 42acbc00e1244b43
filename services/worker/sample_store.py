"""SQL for latency samples: recorded by batch, their hours marked for the roll-up, forgotten."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from services.runtime.database import Connection, Database
from services.worker.sample import SampleGroup

SAMPLES_KEPT = timedelta(days=14)
INSERT_BATCH = """
INSERT INTO worker.sample_batches (batch_id)
VALUES ($1)
ON CONFLICT (batch_id) DO NOTHING
RETURNING batch_id
"""

# $1 to $8 describe groups, $9 to $11 their samples: number of the group, how long, how long ago.
INSERT_SAMPLES = """
INSERT INTO worker.sticker_latency_samples (
    kind, pdf_hash, page, locale, effective_mode, outcome, cache_hit, images_count, chunks,
    latency_ms, created_at
)
SELECT kind, pdf_hash, page, locale, effective_mode, outcome, outcome = 'cached', images_count,
    chunks, latency_ms, now() - age_ms * interval '1 millisecond'
FROM unnest(
    $1::text[], $2::text[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::integer[],
    $8::integer[]
) WITH ORDINALITY AS page_group (
    kind, pdf_hash, page, locale, effective_mode, outcome, images_count, chunks, number
)
INNER JOIN unnest($9::bigint[], $10::integer[], $11::integer[])
    AS sample (number, latency_ms, age_ms) USING (number)
"""

# Written in the transaction that writes what happened in the hour. Not for hours whose samples may
# be forgotten in part by now: rolled up again, their day would shrink.
MARK_HOURS = """
INSERT INTO worker.metric_hours AS marked (hour)
SELECT DISTINCT date_trunc('hour', happened_at, 'UTC') AS hour
FROM unnest($1::timestamptz[]) AS happened_at
WHERE happened_at > now() - $2::interval + interval '1 day'
ORDER BY hour
ON CONFLICT (hour) DO UPDATE SET rolled_up_at = NULL
"""

# The same for samples, whose times are made of their ages as INSERT_SAMPLES makes them.
MARK_HOURS_OF_SAMPLES = """
INSERT INTO worker.metric_hours AS marked (hour)
SELECT DISTINCT date_trunc('hour', now() - age_ms * interval '1 millisecond', 'UTC') AS hour
FROM unnest($1::integer[]) AS age_ms
ORDER BY hour
ON CONFLICT (hour) DO UPDATE SET rolled_up_at = NULL
"""

DELETE_OLD_SAMPLES = """
DELETE FROM worker.sticker_latency_samples
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM worker.sticker_latency_samples
    WHERE created_at < now() - $1::interval
    ORDER BY created_at
    LIMIT 10000
))
"""

DELETE_OLD_BATCHES = """
DELETE FROM worker.sample_batches WHERE recorded_at < now() - interval '2 days'
"""


async def mark_hours(connection: Connection, happened_at: Sequence[datetime]) -> None:
    """Have hours rolled up (again); part of the transaction that changes what happened in them."""
    if happened_at:
        await connection.execute(MARK_HOURS, happened_at, SAMPLES_KEPT)


class SampleStore:
    """Latency samples."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record_samples(self, batch_id: UUID, groups: Sequence[SampleGroup]) -> bool:
        """All of them; none, and False, if the batch was recorded before."""
        numbers = [n for n, group in enumerate(groups, 1) for _ in group.latency_ms]
        latencies = [one for group in groups for one in group.latency_ms]
        ages = [one for group in groups for one in group.age_ms]
        async with self._database.transaction() as connection:
            if await connection.fetchval(INSERT_BATCH, batch_id) is None:
                return False
            # The hours first: their rows are where roll-ups and recorders meet.
            await connection.execute(MARK_HOURS_OF_SAMPLES, ages)
            await connection.execute(INSERT_SAMPLES, *_columns(groups), numbers, latencies, ages)
        return True

    async def delete_old_samples(self) -> int:
        """Forget some of the samples that are too old; answers how many."""
        async with self._database.connection() as connection:
            await connection.execute(DELETE_OLD_BATCHES)
            tag = await connection.execute(DELETE_OLD_SAMPLES, SAMPLES_KEPT)
        return int(tag.rpartition(" ")[2])


def _columns(groups: Sequence[SampleGroup]) -> list[list[Any]]:
    return [
        [group.kind for group in groups],
        [group.pdf_hash for group in groups],
        [group.page for group in groups],
        [group.locale for group in groups],
        [group.effective_mode for group in groups],
        [group.outcome for group in groups],
        [group.images_count for group in groups],
        [group.chunks for group in groups],
    ]
