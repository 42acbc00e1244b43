"""SQL of the admin pages about the Worker's own tables; asked as a role that can only read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from uuid import UUID

import asyncpg

from services.runtime.database import Database
from services.worker.dead_letter import DeadLetter
from services.worker.dead_letter_store import columns, letter_from
from services.worker.metrics_store import metrics_from, most_first, numbers
from services.worker.sample import Metrics

# Every day as a whole and by mode. Days are named one by one: the key begins with the moment, and
# between the first and the last there are the rows of every hour.
READ_DAYS = f"""
SELECT begins_at, effective_mode, {numbers}
FROM worker.sticker_metrics
WHERE begins_at = ANY ($1::timestamptz[]) AND span = 'day' AND kind = $2
  AND pdf_hash = '' AND locale = ''
ORDER BY begins_at
"""

# Sums over days by one dimension at a time, so many of each; percentiles of days cannot be summed.
READ_PARTS = """
SELECT pdf_hash, locale, effective_mode, cache_hits, cache_misses, joins, failures
FROM (
    SELECT pdf_hash, locale, effective_mode, sum(cache_hits)::bigint AS cache_hits,
           sum(cache_misses)::bigint AS cache_misses, sum(joins)::bigint AS joins,
           sum(failures)::bigint AS failures,
           row_number() OVER (
               PARTITION BY pdf_hash <> '', locale <> ''
               ORDER BY sum(cache_hits + cache_misses + joins + failures) DESC, pdf_hash, locale,
                   effective_mode
           ) AS place
    FROM worker.sticker_metrics
    WHERE begins_at = ANY ($1::timestamptz[]) AND span = 'day' AND kind = $2
      AND num_nonnulls(nullif(pdf_hash, ''), nullif(locale, ''), nullif(effective_mode, '')) = 1
    GROUP BY pdf_hash, locale, effective_mode
) AS part
WHERE place <= 100
ORDER BY place
"""

# What was started anew, last first.
LIST_REDRIVEN = f"""
SELECT {columns}
FROM worker.dead_letters
WHERE redriven_at IS NOT NULL
ORDER BY redriven_at DESC, generation_id
LIMIT $1
"""

LIST_STEPS = """
SELECT attempt, stage, done, total, error_reason, error_message, created_at
FROM worker.generation_events
WHERE generation_id = $1
ORDER BY sequence
LIMIT 500
"""


@dataclass(frozen=True, kw_only=True)
class Day:
    """One day in numbers."""

    total: Metrics
    modes: Mapping[str, Metrics]
    failures: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Period:
    """Several days, and what they come to by document, language and mode, most first."""

    days: Mapping[date, Day]
    documents: Mapping[str, Metrics]
    locales: Mapping[str, Metrics]
    modes: Mapping[str, Metrics]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One recorded change of a generation."""

    attempt: int
    stage: str
    done: int
    total: int
    error_reason: str
    error_message: str
    created_at: datetime


class DashboardStore:
    """What admins look at."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_period(self, first_day: date, last_day: date, kind: str) -> Period:
        length = (last_day - first_day).days + 1
        days_asked = [_midnight(first_day + timedelta(days=number)) for number in range(length)]
        async with (
            self._database.connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            days = await connection.fetch(READ_DAYS, days_asked, kind)
            parts = await connection.fetch(READ_PARTS, days_asked, kind)
        return Period(
            days=_days(days),
            documents=_parts(parts, "pdf_hash"),
            locales=_parts(parts, "locale"),
            modes=_parts(parts, "effective_mode"),
        )

    async def list_redriven(self, most: int) -> Sequence[DeadLetter]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_REDRIVEN, most)
        return [letter_from(row) for row in rows]

    async def list_steps(self, generation_id: UUID) -> list[Step]:
        async with self._database.connection() as connection:
            rows = await connection.fetch(LIST_STEPS, generation_id)
        return [Step(**dict(row)) for row in rows]


def _days(rows: Sequence[asyncpg.Record]) -> dict[date, Day]:
    found: dict[date, list[asyncpg.Record]] = {}
    for row in rows:
        found.setdefault(row["begins_at"].astimezone(UTC).date(), []).append(row)
    return {day: _day(of_day) for day, of_day in found.items()}


def _day(rows: Sequence[asyncpg.Record]) -> Day:
    """The rows of one day: one for all modes, which is always there, and one for each."""
    [whole] = [row for row in rows if not row["effective_mode"]]
    return Day(
        total=metrics_from(whole),
        modes={row["effective_mode"]: metrics_from(row) for row in rows if row["effective_mode"]},
        failures=most_first(whole["error_counts"]),
    )


def _parts(rows: Sequence[asyncpg.Record], dimension: str) -> dict[str, Metrics]:
    counted = ("cache_hits", "cache_misses", "joins", "failures")
    return {
        row[dimension]: Metrics(**{name: row[name] for name in counted})
        for row in rows
        if row[dimension]
    }


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
