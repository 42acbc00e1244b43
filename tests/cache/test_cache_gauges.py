"""Gauges about queue and outbox: what they tell, what they cost, and what they tell in trouble."""

import asyncio
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from prometheus_client import REGISTRY

from services.cache import gauge_store
from services.cache.domain import Lane
from services.cache.gauge_store import GaugeStore, LaneState, OutboxState
from services.cache.gauges import Gauges
from services.runtime.database import open_database
from services.runtime.errors import DependencyDown
from services.runtime.sampling import sampling

# Two wait in one lane, and one each is leased, stale and in backoff; in the other nothing waits.
SEED_QUEUE = """
INSERT INTO cache.generations
    (kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
     lane, turn, run_after, attempts, leased_by, leased_until, deadline_at)
SELECT 'page_explanation', repeat('a', 64), page, 'v', 'en', 'text_only', 'm', 'shared', 0,
    lane, turn, now() + due, CASE WHEN lease IS NULL THEN 0 ELSE 1 END,
    CASE WHEN lease IS NOT NULL THEN 'w' END, now() + lease, now() + lease
FROM (VALUES
    (1, 0, 0, interval '-90 seconds', NULL),
    (2, 0, 1, interval '-30 seconds', NULL),
    (3, 0, 1, interval '-300 seconds', interval '20 seconds'),
    (4, 0, 1, interval '-300 seconds', interval '-20 seconds'),
    (5, 0, NULL, interval '60 seconds', NULL),
    (6, 1, 0, interval '-300 seconds', interval '20 seconds')
) AS job (page, lane, turn, due, lease)
"""
SEED_OUTBOX = """
INSERT INTO cache.outbox (request_id, user_id, reason, created_at)
SELECT gen_random_uuid(), 'alice', 'request_aborted', now() - due
FROM unnest($1::interval[]) AS due
"""
SEED_HISTORY = """
INSERT INTO cache.generations
    (kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
     status, stage, result, completed_at, turn)
SELECT 'page_explanation', repeat('b', 64), page, 'v', 'en', 'text_only', 'm', 'shared', 0,
    'ready', 'ready', ''::bytea, now(), NULL
FROM generate_series(1, 20000) AS page
"""


@pytest.fixture
async def admin(admin_url: str) -> Any:
    connection = await asyncpg.connect(admin_url)
    yield connection
    await connection.close()


async def test_queue_and_outbox_are_counted_as_they_stand(
    admin: "asyncpg.Connection[Any]", databases: Mapping[str, str]
) -> None:
    await admin.execute(SEED_QUEUE)
    await admin.execute(SEED_OUTBOX, [timedelta(seconds=45), timedelta(seconds=5)])

    async with open_database(databases["cache"], application_name="test") as database:
        store = GaugeStore(database)
        queue, outbox = await store.count_queue(), await store.count_outbox()

    busy = queue[Lane.INTERACTIVE]
    assert (busy.waiting, busy.leased, busy.stale, busy.backoff) == (2, 1, 1, 1)
    assert 90 <= busy.oldest_seconds < 300
    assert queue[Lane.BACKGROUND] == LaneState(leased=1)
    assert outbox.refunds == 2
    assert 45 <= outbox.oldest_seconds < 300


async def test_nothing_is_counted_where_there_is_nothing(databases: Mapping[str, str]) -> None:
    async with open_database(databases["cache"], application_name="test") as database:
        store = GaugeStore(database)

        assert await store.count_queue() == {lane: LaneState() for lane in Lane}
        assert await store.count_outbox() == OutboxState(refunds=0, oldest_seconds=0)


async def test_a_look_at_the_queue_reads_no_history(admin: "asyncpg.Connection[Any]") -> None:
    await admin.execute(SEED_HISTORY)
    await admin.execute(SEED_QUEUE)
    await admin.execute("ANALYZE cache.generations")

    plan = await admin.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {gauge_store.COUNT_QUEUE}")

    assert "Seq Scan" not in json.dumps(plan)


async def test_a_failed_look_is_counted_and_the_last_one_stays(
    admin: "asyncpg.Connection[Any]", databases: Mapping[str, str]
) -> None:
    def waiting() -> float | None:
        labels = {"lane": "interactive", "state": "waiting"}
        return REGISTRY.get_sample_value("glossa_cache_queue_jobs", labels)

    def failed() -> float:
        return REGISTRY.get_sample_value("glossa_cache_failed_looks_total") or 0

    await admin.execute(SEED_QUEUE)
    async with open_database(databases["cache"], application_name="test") as database:
        gauges = Gauges(store=GaugeStore(database))
        await gauges.look()
    assert waiting() == 2

    async def look() -> None:
        raise DependencyDown("away", reason="DATABASE_UNAVAILABLE")

    async with sampling("cache", look, every=timedelta(milliseconds=1)):
        before = failed()
        async with asyncio.timeout(20):
            while failed() < before + 2:  # noqa: ASYNC110 - a counter gives no event
                await asyncio.sleep(0.001)
    assert waiting() == 2
