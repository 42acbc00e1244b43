"""The Worker's statements read what they need and no table whole, however much is kept."""

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from services.worker.dead_letter_store import (
    CHOOSE_DEAD_LETTERS,
    LIST_DEAD_LETTERS,
    LIST_KNOWN,
    READ_LAST_FAILURE,
)
from services.worker.metrics_store import CHOOSE_DAY, READ_DAY, ROLL_UP
from services.worker.sample_store import DELETE_OLD_SAMPLES
from services.worker.store import DELETE_OLD_EVENTS, LIST_EVENTS_OF_MANY

NOW = datetime.now(UTC)
DAY = timedelta(days=1)

FILL = """
INSERT INTO worker.generation_events (generation_id, sequence, attempt, status, stage, created_at)
SELECT md5(n::text)::uuid, number, 1,
       CASE number WHEN 3 THEN 'ready' ELSE 'generating' END,
       CASE number WHEN 3 THEN 'ready' ELSE 'reading' END,
       now() - n * interval '10 minutes'
FROM generate_series(1, 3000) AS n, generate_series(1, 3) AS number;

INSERT INTO worker.sticker_latency_samples
SELECT 'page_explanation', md5((n % 50)::text) || md5((n % 50)::text), 1, 'en', 'text_only',
       'generated', false, n % 1000, 0, 1, now() - n * interval '1 minute'
FROM generate_series(1, 20000) AS n;

INSERT INTO worker.dead_letters
SELECT md5(n::text)::uuid, 'page_explanation', md5(n::text) || md5(n::text), 1, 'en', 'text_only',
       'model', '1', false, 'REASON_' || n % 5, '', false, 3, '[]', 0,
       now() - n * interval '1 minute', now() - n * interval '1 minute',
       CASE WHEN n > 100 THEN now() END, CASE WHEN n > 100 THEN md5(n::text)::uuid END
FROM generate_series(1, 10000) AS n;

INSERT INTO worker.metric_hours
SELECT date_trunc('hour', now(), 'UTC') - n * interval '1 hour', now()
FROM generate_series(1, 2000) AS n;

INSERT INTO worker.sticker_metrics
SELECT 'day', date_trunc('day', now(), 'UTC') - (n / 50) * interval '1 day', 'page_explanation',
       md5((n % 50)::text), '', '', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, '{}'
FROM generate_series(1, 10000) AS n;
"""

SELECTORS = (None,) * 8
STATEMENTS: list[tuple[str, tuple[Any, ...]]] = [
    (LIST_EVENTS_OF_MANY, ([uuid4() for _ in range(100)], [0] * 100)),
    (DELETE_OLD_EVENTS, (7 * DAY,)),
    (DELETE_OLD_SAMPLES, (13 * DAY,)),
    (ROLL_UP, ("hour", NOW - DAY, NOW - DAY + timedelta(hours=1))),
    (CHOOSE_DAY, ()),
    (READ_DAY, (NOW.replace(hour=0, minute=0, second=0, microsecond=0), "page_explanation")),
    (READ_LAST_FAILURE, ()),
    (LIST_KNOWN, ([uuid4() for _ in range(200)],)),
    (LIST_DEAD_LETTERS, (*SELECTORS, False, None, None, 50)),
    (LIST_DEAD_LETTERS, (*SELECTORS, True, None, None, 50)),
    (CHOOSE_DEAD_LETTERS, (*SELECTORS, NOW, NOW - 900 * DAY, UUID(int=0), 100)),
]


@pytest.fixture
async def connection(
    admin_url: str, databases: Mapping[str, str]
) -> AsyncIterator["asyncpg.Connection[Any]"]:
    admin = await asyncpg.connect(admin_url)
    await admin.execute(FILL)
    await admin.execute("ANALYZE")
    await admin.close()
    own = await asyncpg.connect(databases["worker"])
    yield own
    await own.close()


async def test_no_statement_reads_a_whole_table(connection: "asyncpg.Connection[Any]") -> None:
    for statement, arguments in STATEMENTS:
        rows = await connection.fetch(f"EXPLAIN {statement}", *arguments)
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan" not in plan, plan


async def test_old_generations_are_found_by_their_ends_and_beginnings(
    connection: "asyncpg.Connection[Any]",
) -> None:
    rows = await connection.fetch(f"EXPLAIN {DELETE_OLD_EVENTS}", 7 * DAY)
    plan = "\n".join(row[0] for row in rows)
    assert "event_ends_by_time_idx" in plan, plan
    assert "event_beginnings_by_time_idx" in plan, plan
