"""A fortnight as it might have been, written straight into the tables, and what it comes to."""

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg

DAYS = 14
DOCUMENTS = ("a" * 64, "b" * 64, "0123456789abcdef" * 4)
REASONS = ("MODEL_UNAVAILABLE", "CONTENT_REFUSED", "PDF_UNREADABLE")
COST_OF_A_GENERATION = 21_000_000
NANO = 1_000_000_000

METRICS = """
INSERT INTO worker.sticker_metrics (
    span, begins_at, kind, pdf_hash, locale, effective_mode, cache_hits, cache_misses, joins,
    failures, total_generation_ms, p50_generation_ms, p95_generation_ms, p99_generation_ms,
    p50_hit_ms, p95_hit_ms, p99_hit_ms, total_images, total_chunks, error_counts
)
VALUES ('day', $1, 'page_explanation', $2, $3, $4, $5, $6, $7, $8, 0, 900, $9, 9000, 3, $10, 20,
        0, 0, $11)
"""
LETTER = """
INSERT INTO worker.dead_letters (
    generation_id, kind, pdf_hash, page, locale, effective_mode, model, prompt_version, private,
    reason, message, permanent, attempts, failures, cost_nanodollars, created_at, failed_at
)
VALUES ($1, 'page_explanation', $2, $3, 'en', 'text_only', 'gpt-4.1-mini', '2026-11-18.4', false,
        $4, $5, true, 1, $6, 1234567, $7, $7)
"""


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What one day was seeded with."""

    hits: int
    misses: int
    joins: int
    failures: dict[str, int]
    spent_nanodollars: int
    shared: int
    refunds: int
    zombies: int


def totals_of(days_ago: int) -> Totals:
    """Made up, but never the same twice."""
    busy = 40 * (DAYS - days_ago) + 137 * (days_ago % 3)
    return Totals(
        hits=8 * busy + 3,
        misses=busy,
        joins=busy // 2,
        failures={reason: 1 + (days_ago * 3 + place) % 7 for place, reason in enumerate(REASONS)},
        spent_nanodollars=NANO // 4 * (1 + days_ago % 5) + 10_000_000,
        shared=3 + days_ago % 4,
        refunds=1 + days_ago % 3,
        zombies=days_ago % 4,
    )


async def seed_fortnight(connection: "asyncpg.Connection[Any]", today: date) -> None:
    for days_ago in range(DAYS):
        day, totals = today - timedelta(days=days_ago), totals_of(days_ago)
        await _seed_metrics(connection, day, totals, days_ago)
        await _seed_money(connection, day, totals)
        await connection.execute(
            "INSERT INTO cache.daily_losses SELECT $1, 'lease_expired', $2::bigint WHERE $2 > 0",
            day,
            totals.zombies,
        )


async def _seed_metrics(
    connection: "asyncpg.Connection[Any]", day: date, totals: Totals, days_ago: int
) -> None:
    midnight = datetime.combine(day, time(), UTC)
    parts = [
        ("", "", "", 1, 1),
        ("", "", "text_only", 3, 4),
        ("", "", "with_images", 1, 4),
        ("", "en", "", 2, 3),
        ("", "zh-Hans", "", 1, 3),
        *((document, "", "", 1, 2 + place) for place, document in enumerate(DOCUMENTS)),
    ]
    for pdf_hash, locale, mode, share, of in parts:
        slow = 2 if mode == "with_images" else 1
        await connection.execute(
            METRICS,
            midnight,
            pdf_hash,
            locale,
            mode,
            totals.hits * share // of,
            totals.misses * share // of * slow,
            totals.joins * share // of,
            sum(totals.failures.values()) * share // of,
            slow * (2_000 + 170 * days_ago),
            8 + days_ago,
            json.dumps(totals.failures if not (pdf_hash or locale or mode) else {}),
        )


async def _seed_money(connection: "asyncpg.Connection[Any]", day: date, totals: Totals) -> None:
    noon = datetime.combine(day, time(0, 0, 1), UTC)
    generation = uuid4()
    await connection.execute(
        "INSERT INTO quota.ai_operations (operation_id, user_id, generation_id, attempt, endpoint,"
        " model, input_tokens, cached_input_tokens, output_tokens, duration_ms, outcome,"
        " cost_nanodollars, created_at)"
        " VALUES ($1, 'ann', $2, 1, 'explain_page', 'gpt-4.1-mini', 1, 0, 1, 1, 'ok', $3, $4)",
        uuid4(),
        generation,
        totals.spent_nanodollars,
        noon,
    )
    await connection.execute(
        "INSERT INTO quota.spending VALUES ('generation', $1, $2)",
        str(generation),
        COST_OF_A_GENERATION,
    )
    for _ in range(totals.shared):
        request_id = await _charge(connection, generation, noon, "charged")
        await _entry(connection, request_id, "charge", -1, "cached", noon)
    for _ in range(totals.refunds):
        request_id = await _charge(connection, generation, noon, "refunded")
        await _entry(connection, request_id, "refund", 2, "generation_failed", noon)


async def _charge(
    connection: "asyncpg.Connection[Any]", generation: UUID, at: datetime, status: str
) -> UUID:
    request_id = uuid4()
    await connection.execute(
        "INSERT INTO quota.explain_requests (request_id, user_id, endpoint, outcome, generation_id,"
        " pdf_hash, page, locale, effective_mode, quota_units, status, refund_reason, created_at,"
        " refunded_at) VALUES ($1, 'bob', 'explain_page', 'cached', $2, $3, 1, 'en', 'text_only',"
        " 1, $4::text, CASE WHEN $4 = 'refunded' THEN 'generation_failed' END, $5::timestamptz,"
        " CASE WHEN $4 = 'refunded' THEN $5 END)",
        request_id,
        generation,
        DOCUMENTS[0],
        status,
        at,
    )
    return request_id


async def _entry(
    connection: "asyncpg.Connection[Any]",
    request_id: UUID,
    kind: str,
    units: int,
    reason: str,
    at: datetime,
) -> None:
    await connection.execute(
        "INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason, created_at)"
        " VALUES ('bob', $1, $2, $3, $4, $5)",
        request_id,
        kind,
        units,
        reason,
        at,
    )


async def seed_letter(
    connection: "asyncpg.Connection[Any]",
    *,
    reason: str = "CONTENT_REFUSED",
    message: str = "the model refused to explain this page",
    pdf_hash: str = DOCUMENTS[0],
    page: int = 1,
    minutes_ago: int = 5,
) -> UUID:
    generation_id, at = uuid4(), datetime.now(UTC) - timedelta(minutes=minutes_ago)
    failure = {"attempt": 1, "reason": reason, "message": message, "failed_at": at.isoformat()}
    await connection.execute(
        LETTER, generation_id, pdf_hash, page, reason, message, json.dumps([failure]), at
    )
    return generation_id
