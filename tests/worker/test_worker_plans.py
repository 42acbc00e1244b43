"""The Worker's statements read what they need and no table whole, however much is kept."""

import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from services.runtime.database import open_database
from services.worker.dashboard_store import READ_DAYS, READ_PARTS, DashboardStore
from services.worker.dead_letter_store import (
    CHOOSE_DEAD_LETTERS,
    LIST_DEAD_LETTERS,
    LIST_KNOWN,
    READ_LAST_FAILURE,
)
from services.worker.metrics_store import (
    CHOOSE_DAY,
    READ_DAY,
    READ_DAY_DOCUMENTS,
    ROLL_UP,
    MetricsStore,
)
from services.worker.sample_store import DELETE_OLD_SAMPLES
from services.worker.store import DELETE_OLD_EVENTS, LIST_EVENTS_OF_MANY

NOW = datetime.now(UTC)
TODAY = NOW.replace(hour=0, minute=0, second=0, microsecond=0)
DAY = timedelta(days=1)
FORTNIGHT = [TODAY - number * DAY for number in range(14)]
KIND = "page_explanation"

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

# A fortnight of hours, with the documents of each; and days with 120 documents and 120 languages.
FILL_METRICS = """
INSERT INTO worker.sticker_metrics
SELECT 'hour', date_trunc('day', now(), 'UTC') - number * interval '1 hour', 'page_explanation',
       md5(n::text), '', '', 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, '{}'
FROM generate_series(0, 14 * 24) AS number, generate_series(1, 100) AS n;

INSERT INTO worker.sticker_metrics
SELECT 'day', date_trunc('day', now(), 'UTC') - number * interval '1 day', 'page_explanation',
       pdf_hash, locale, mode, n, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, '{}'
FROM generate_series(0, 1) AS number, generate_series(1, 120) AS n, LATERAL (VALUES
    ('document ' || n, '', ''), ('', 'language ' || n, ''), ('', '', 'mode ' || n)
) AS part (pdf_hash, locale, mode);

INSERT INTO worker.sticker_metrics
SELECT 'day', date_trunc('day', now(), 'UTC') - number * interval '1 day', 'page_explanation',
       '', '', '', 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, '{}'
FROM generate_series(0, 1) AS number;
"""

SELECTORS = (None,) * 8
STATEMENTS: list[tuple[str, tuple[Any, ...]]] = [
    (LIST_EVENTS_OF_MANY, ([uuid4() for _ in range(100)], [0] * 100)),
    (DELETE_OLD_EVENTS, (7 * DAY,)),
    (DELETE_OLD_SAMPLES, (13 * DAY,)),
    (ROLL_UP, ("hour", NOW - DAY, NOW - DAY + timedelta(hours=1))),
    (CHOOSE_DAY, ()),
    (READ_DAY, (TODAY, KIND)),
    (READ_DAY_DOCUMENTS, (TODAY, KIND)),
    (READ_DAYS, (FORTNIGHT, KIND)),
    (READ_PARTS, (FORTNIGHT, KIND)),
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


@pytest.fixture
async def days(
    admin_url: str, databases: Mapping[str, str]
) -> AsyncIterator["asyncpg.Connection[Any]"]:
    admin = await asyncpg.connect(admin_url)
    await admin.execute(FILL_METRICS)
    await admin.execute("VACUUM ANALYZE worker.sticker_metrics")
    yield admin
    await admin.close()


@pytest.mark.parametrize("statement", [READ_DAYS, READ_PARTS])
async def test_the_rows_of_hours_are_no_burden_to_days(
    days: "asyncpg.Connection[Any]", statement: str
) -> None:
    found = await days.fetchval(
        f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", FORTNIGHT, KIND
    )
    plan = json.loads(found)[0]["Plan"]
    key = await days.fetchval(
        "SELECT relpages FROM pg_class WHERE relname = 'metrics_are_counted_once'"
    )

    # Nearly all of the key is about hours.
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < key / 2


async def test_a_day_with_many_documents_is_read_in_few_rows(
    days: "asyncpg.Connection[Any]", databases: Mapping[str, str]
) -> None:
    rows = await days.fetch(READ_DAY, TODAY, KIND)
    async with open_database(databases["worker"], application_name="test") as database:
        summary = await MetricsStore(database).read_summary(TODAY.date(), KIND)

    assert len(rows) == 1 + 120 + 120
    assert list(summary.documents) == [f"document {n}" for n in range(120, 70, -1)]
    assert (len(summary.modes), len(summary.locales)) == (120, 120)
    assert summary.documents["document 99"].cache_hits == 99


async def test_no_dimension_crowds_out_another(
    days: "asyncpg.Connection[Any]", databases: Mapping[str, str]
) -> None:
    async with open_database(databases["worker"], application_name="test") as database:
        period = await DashboardStore(database).read_period(
            FORTNIGHT[-1].date(), TODAY.date(), KIND
        )

    assert sorted(period.days) == [FORTNIGHT[1].date(), TODAY.date()]
    for parts, name in (
        (period.documents, "document"),
        (period.locales, "language"),
        (period.modes, "mode"),
    ):
        assert list(parts) == [f"{name} {n}" for n in range(120, 20, -1)]
        assert parts[f"{name} 120"].cache_hits == 240
