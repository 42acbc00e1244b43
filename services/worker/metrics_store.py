"""SQL for what happened by hour and day: summed up from samples and dead letters, and read."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

import asyncpg

from services.runtime.database import Database
from services.worker.sample import DailySummary, Latency, Metrics
from services.worker.sample_store import SAMPLES_KEPT

# Sums over many samples take longer than any request may.
ROLL_UP_SECONDS = 600.0
PATIENT = "SET LOCAL statement_timeout = '10min'"

# The oldest day (UTC) with hours left to do that are over; held until its sums are committed.
CHOOSE_DAY = """
SELECT hour
FROM worker.metric_hours
WHERE rolled_up_at IS NULL AND hour < date_trunc('hour', now(), 'UTC')
  AND date_trunc('day', hour, 'UTC') = (
      SELECT date_trunc('day', oldest.hour, 'UTC')
      FROM worker.metric_hours AS oldest
      WHERE oldest.rolled_up_at IS NULL AND oldest.hour < date_trunc('hour', now(), 'UTC')
      ORDER BY oldest.hour
      LIMIT 1
  )
ORDER BY hour
FOR UPDATE
"""

# Sums and percentiles of a span, for every page's document, language and mode together, for each
# of these alone, and for all. Doing it again gives the same: the key decides, not the number of
# runs. What happened in the hour that still runs is left out.
ROLL_UP = """
WITH happened AS (
    SELECT kind, pdf_hash, locale, effective_mode, outcome, cache_hit, latency_ms, images_count,
        chunks, NULL::text AS reason
    FROM worker.sticker_latency_samples
    WHERE created_at >= $2 AND created_at < least($3, date_trunc('hour', now(), 'UTC'))
    UNION ALL
    SELECT kind, pdf_hash, locale, effective_mode, 'failed', false, NULL, 0, 0, reason
    FROM worker.dead_letters
    WHERE failed_at >= $2 AND failed_at < least($3, date_trunc('hour', now(), 'UTC'))
), reasons AS (
    SELECT kind, pdf_hash, locale, effective_mode, jsonb_object_agg(reason, number) AS error_counts
    FROM (
        SELECT kind, pdf_hash, locale, effective_mode, reason, count(*) AS number
        FROM happened
        WHERE reason IS NOT NULL
        GROUP BY GROUPING SETS (
            (kind, pdf_hash, locale, effective_mode, reason), (kind, pdf_hash, reason),
            (kind, locale, reason), (kind, effective_mode, reason), (kind, reason)
        )
    ) AS counted
    GROUP BY kind, pdf_hash, locale, effective_mode
), sums AS (
    SELECT kind, pdf_hash, locale, effective_mode,
        count(*) FILTER (WHERE cache_hit) AS cache_hits,
        count(*) FILTER (WHERE outcome = 'generated') AS cache_misses,
        count(*) FILTER (WHERE outcome = 'joined') AS joins,
        count(*) FILTER (WHERE outcome = 'failed') AS failures,
        coalesce(sum(latency_ms) FILTER (WHERE NOT cache_hit), 0) AS total_generation_ms,
        percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY latency_ms)
            FILTER (WHERE NOT cache_hit) AS generation_ms,
        percentile_disc(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY latency_ms)
            FILTER (WHERE cache_hit) AS hit_ms,
        sum(images_count) AS total_images,
        sum(chunks) AS total_chunks
    FROM happened
    GROUP BY GROUPING SETS (
        (kind, pdf_hash, locale, effective_mode), (kind, pdf_hash), (kind, locale),
        (kind, effective_mode), (kind)
    )
)
INSERT INTO worker.sticker_metrics (
    span, begins_at, kind, pdf_hash, locale, effective_mode, cache_hits, cache_misses, joins,
    failures, total_generation_ms, p50_generation_ms, p95_generation_ms, p99_generation_ms,
    p50_hit_ms, p95_hit_ms, p99_hit_ms, total_images, total_chunks, error_counts
)
SELECT $1, $2, sums.kind, coalesce(sums.pdf_hash, ''), coalesce(sums.locale, ''),
    coalesce(sums.effective_mode, ''), cache_hits, cache_misses, joins, failures,
    total_generation_ms, coalesce(generation_ms[1], 0), coalesce(generation_ms[2], 0),
    coalesce(generation_ms[3], 0), coalesce(hit_ms[1], 0), coalesce(hit_ms[2], 0),
    coalesce(hit_ms[3], 0), total_images, total_chunks, coalesce(reasons.error_counts, '{}')
FROM sums
LEFT JOIN reasons
    ON (reasons.kind, coalesce(reasons.pdf_hash, ''), coalesce(reasons.locale, ''),
        coalesce(reasons.effective_mode, ''))
     = (sums.kind, coalesce(sums.pdf_hash, ''), coalesce(sums.locale, ''),
        coalesce(sums.effective_mode, ''))
ON CONFLICT (begins_at, span, kind, pdf_hash, locale, effective_mode) DO UPDATE
SET cache_hits = excluded.cache_hits, cache_misses = excluded.cache_misses,
    joins = excluded.joins, failures = excluded.failures,
    total_generation_ms = excluded.total_generation_ms,
    p50_generation_ms = excluded.p50_generation_ms,
    p95_generation_ms = excluded.p95_generation_ms,
    p99_generation_ms = excluded.p99_generation_ms,
    p50_hit_ms = excluded.p50_hit_ms, p95_hit_ms = excluded.p95_hit_ms,
    p99_hit_ms = excluded.p99_hit_ms, total_images = excluded.total_images,
    total_chunks = excluded.total_chunks, error_counts = excluded.error_counts,
    updated_at = now()
"""

MARK_ROLLED_UP = """
UPDATE worker.metric_hours SET rolled_up_at = now() WHERE hour = ANY($1::timestamptz[])
"""

numbers = """cache_hits, cache_misses, joins, failures, p50_generation_ms, p95_generation_ms,
       p99_generation_ms, p50_hit_ms, p95_hit_ms, p99_hit_ms, total_images, total_chunks,
       error_counts"""

# The day as a whole, by language and by mode: a handful of rows, whatever happened.
READ_DAY = f"""
SELECT locale, effective_mode, {numbers}
FROM worker.sticker_metrics
WHERE span = 'day' AND begins_at = $1 AND kind = $2 AND pdf_hash = ''
  AND (locale = '' OR effective_mode = '')
ORDER BY cache_hits + cache_misses + joins + failures DESC, locale, effective_mode
"""

# A day may have any number of documents; nobody is shown more than these.
READ_DAY_DOCUMENTS = f"""
SELECT pdf_hash, {numbers}
FROM worker.sticker_metrics
WHERE span = 'day' AND begins_at = $1 AND kind = $2
  AND pdf_hash <> '' AND locale = '' AND effective_mode = ''
ORDER BY cache_hits + cache_misses + joins + failures DESC, pdf_hash
LIMIT 50
"""

READ_HOURS = f"""
SELECT begins_at, {numbers}
FROM worker.sticker_metrics
WHERE span = 'hour' AND begins_at >= $1 AND begins_at < $1::timestamptz + interval '1 day'
  AND kind = $2 AND pdf_hash = '' AND locale = '' AND effective_mode = ''
ORDER BY begins_at
"""

READ_YESTERDAY = "SELECT (now() AT TIME ZONE 'UTC')::date - 1"

READ_COMPLETE_UNTIL = """
SELECT least(date_trunc('hour', now(), 'UTC'), (
    SELECT hour FROM worker.metric_hours WHERE rolled_up_at IS NULL ORDER BY hour LIMIT 1
))
"""

COUNT_OPEN = "SELECT count(*) FROM worker.dead_letters WHERE redriven_at IS NULL"

# Hours that are left to do stay, however old they are.
DELETE_OLD_HOURS = """
DELETE FROM worker.metric_hours WHERE hour < now() - $1::interval AND rolled_up_at IS NOT NULL
"""

# Days keep what hours tell about single documents.
DELETE_OLD_DETAILS = """
DELETE FROM worker.sticker_metrics
WHERE span = 'hour' AND begins_at < now() - $1::interval AND pdf_hash <> ''
"""


class MetricsStore:
    """Metrics by hour and day."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def roll_up_day(self) -> int:
        """Sum up what is left to do of the oldest day; answers how many hours that were."""
        async with self._database.transaction() as connection:
            await connection.execute(PATIENT)
            hours: list[datetime] = [row["hour"] for row in await connection.fetch(CHOOSE_DAY)]
            if not hours:
                return 0
            day = hours[0].replace(hour=0)
            spans = [("hour", hour, timedelta(hours=1)) for hour in hours]
            for span, begins_at, length in (*spans, ("day", day, timedelta(days=1))):
                await connection.execute(
                    ROLL_UP, span, begins_at, begins_at + length, timeout=ROLL_UP_SECONDS
                )
            await connection.execute(MARK_ROLLED_UP, hours)
        return len(hours)

    async def read_summary(self, day: date | None, kind: str) -> DailySummary:
        """One day in numbers; yesterday unless told."""
        async with (
            self._database.connection() as connection,
            # One moment for all of it.
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            day = day or await connection.fetchval(READ_YESTERDAY)
            assert day is not None
            begins_at = _midnight(day)
            complete_until = await connection.fetchval(READ_COMPLETE_UNTIL)
            parts = await connection.fetch(READ_DAY, begins_at, kind)
            documents = await connection.fetch(READ_DAY_DOCUMENTS, begins_at, kind)
            hours = await connection.fetch(READ_HOURS, begins_at, kind)
            letters = await connection.fetchval(COUNT_OPEN)
        total = [row for row in parts if not any(tuple(row)[:2])]
        return DailySummary(
            day=day,
            total=metrics_from(total[0]) if total else Metrics(),
            hours={row["begins_at"].hour: metrics_from(row) for row in hours},
            modes=_parts(parts, "effective_mode"),
            locales=_parts(parts, "locale"),
            documents=_parts(documents, "pdf_hash"),
            failures=most_first(total[0]["error_counts"]) if total else {},
            complete_until=complete_until,
            open_dead_letters=letters,
        )

    async def delete_old_details(self) -> None:
        """What nobody needs once the samples are gone."""
        async with self._database.transaction() as connection:
            await connection.execute(DELETE_OLD_HOURS, SAMPLES_KEPT)
            await connection.execute(DELETE_OLD_DETAILS, SAMPLES_KEPT)


def _parts(rows: Sequence[asyncpg.Record], dimension: str) -> dict[str, Metrics]:
    return {row[dimension]: metrics_from(row) for row in rows if row[dimension]}


def metrics_from(row: asyncpg.Record) -> Metrics:
    return Metrics(
        cache_hits=row["cache_hits"],
        cache_misses=row["cache_misses"],
        joins=row["joins"],
        failures=row["failures"],
        generation=_latency(row, "generation"),
        hit=_latency(row, "hit"),
        total_images=row["total_images"],
        total_chunks=row["total_chunks"],
    )


def _latency(row: asyncpg.Record, what: str) -> Latency:
    return Latency(
        p50_ms=row[f"p50_{what}_ms"], p95_ms=row[f"p95_{what}_ms"], p99_ms=row[f"p99_{what}_ms"]
    )


def most_first(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _midnight(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)
