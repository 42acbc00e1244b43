"""A long past, written by SQL: every promise is kept in it, as if four services had lived it."""

from datetime import timedelta
from typing import Any

import asyncpg

LONG = timedelta(days=25)
USERS = 10_000

# $1 generations over $2, the oldest first as they would come; one in fifty failed, and of the
# last half hour up to a hundred are being made.
PAST = f"""
CREATE TEMPORARY TABLE past AS
SELECT n, md5('generation' || n)::uuid AS generation_id, md5('request' || n)::uuid AS request_id,
    'user-' || n % {USERS} AS user_id,
    encode(sha256(('document' || n / 50)::bytea), 'hex') AS pdf_hash, 1 + n % 50 AS page,
    now() - $2::interval + $2::interval * (n::float8 / $1::integer) AS at,
    CASE WHEN n > $1 - 100 AND $2::interval * (($1 - n)::float8 / $1) < interval '30 minutes'
        THEN 'generating' WHEN n % 50 = 7 THEN 'failed' ELSE 'ready' END AS status
FROM generate_series(1, $1::integer) AS n
"""

CACHE = """
INSERT INTO cache.generations (
    generation_id, kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope,
    images_count, status, stage, result, error_reason, created_at, started_at, completed_at, owner,
    turn, run_after, attempts, failures
)
SELECT generation_id, 'page_explanation', pdf_hash, page, 'v1', 'en', 'text_only', 'm', 'shared', 0,
    status, CASE status WHEN 'generating' THEN 'queued' ELSE status END,
    CASE status WHEN 'ready' THEN ''::bytea END, CASE status WHEN 'failed' THEN 'PAGE_BROKEN' END,
    at, CASE WHEN status <> 'generating' THEN at + interval '1 second' END,
    CASE WHEN status <> 'generating' THEN at + interval '9 seconds' END, user_id, n, at,
    CASE status WHEN 'generating' THEN 0 ELSE 1 END,
    CASE status WHEN 'failed' THEN '[{"attempt": 1, "reason": "PAGE_BROKEN"}]'::jsonb ELSE '[]' END
FROM past ORDER BY n;

INSERT INTO cache.requests (
    request_id, user_id, pdf_hash, page, locale, state, nonce, held_until, outcome, generation_id,
    units, created_at, updated_at
)
SELECT request_id, user_id, pdf_hash, page, 'en',
    CASE status WHEN 'generating' THEN 'waiting' WHEN 'ready' THEN 'served' ELSE 'failed' END,
    gen_random_uuid(), at, 'generated', generation_id, 1, at,
    CASE status WHEN 'generating' THEN at ELSE at + interval '9 seconds' END
FROM past ORDER BY n;
"""

QUOTA = """
INSERT INTO quota.explain_requests (
    request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale, effective_mode,
    quota_units, status, refund_reason, created_at, refunded_at
)
SELECT request_id, user_id, 'explain_page', 'generated', generation_id, pdf_hash, page, 'en',
    'text_only', 1, CASE status WHEN 'failed' THEN 'refunded' ELSE 'charged' END,
    CASE status WHEN 'failed' THEN 'generation_failed' END, at,
    CASE status WHEN 'failed' THEN at + interval '10 seconds' END
FROM past ORDER BY n;

INSERT INTO quota.ledger_entries (user_id, kind, units, reason, created_at)
SELECT DISTINCT user_id, 'grant', 1000, '', now() - interval '26 days' FROM past;

INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason, created_at)
SELECT user_id, request_id, 'charge', -1, 'generated', at FROM past ORDER BY n;

INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason, created_at)
SELECT user_id, request_id, 'refund', 1, 'generation_failed', at + interval '10 seconds'
FROM past WHERE status = 'failed' ORDER BY n;

INSERT INTO quota.accounts (user_id, balance_units, period_ends_at)
SELECT user_id, sum(units), now() + interval '6 days' FROM quota.ledger_entries GROUP BY user_id;

INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at, sequence)
SELECT user_id, 'explain_page', at, row_number() OVER (PARTITION BY user_id ORDER BY at)
FROM past WHERE at > now() - interval '1 day' ORDER BY n;

INSERT INTO quota.ai_operations (
    operation_id, user_id, generation_id, attempt, endpoint, pdf_hash, page, model, input_tokens,
    cached_input_tokens, output_tokens, duration_ms, outcome, cost_nanodollars, created_at
)
SELECT gen_random_uuid(), user_id, generation_id, 1, 'explain_page', pdf_hash, page, 'm', 1000, 0,
    200, 4000, 'ok', 100, at + interval '5 seconds'
FROM past WHERE status <> 'generating' ORDER BY n;

INSERT INTO quota.spending (kind, subject, cost_nanodollars)
SELECT part.kind, part.subject, sum(cost_nanodollars)
FROM quota.ai_operations
CROSS JOIN LATERAL (VALUES
    ('day', to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')), ('document', pdf_hash),
    ('generation', generation_id::text),
    ('user_month', user_id || to_char(created_at AT TIME ZONE 'UTC', ' YYYY-MM'))
) AS part (kind, subject)
GROUP BY part.kind, part.subject;
"""

# Events are kept for a week.
WORKER = """
INSERT INTO worker.generation_events (
    generation_id, sequence, attempt, status, stage, created_at
)
SELECT generation_id, place, 1, CASE place WHEN 4 THEN status ELSE 'generating' END,
    CASE place WHEN 4 THEN status WHEN 1 THEN 'reading' ELSE 'explaining' END,
    at + interval '3 seconds' * place
FROM past CROSS JOIN generate_series(1, 4) AS place
WHERE at > now() - interval '7 days' AND status <> 'generating'
ORDER BY n, place;
"""

REGISTRY = """
INSERT INTO registry.canonical_documents (
    pdf_hash, size_bytes, total_pages, reference_count, unreferenced_at, created_at, processed_at
)
SELECT pdf_hash, 1000, 50, 1, NULL, min(at), min(at) FROM past GROUP BY pdf_hash;

INSERT INTO registry.files (file_id, user_id, content_hash, filename, size_bytes)
SELECT md5(pdf_hash)::uuid, 'user-1', pdf_hash, 'a.pdf', 1000 FROM registry.canonical_documents;

INSERT INTO registry.canonical_document_refs (ref_type, ref_id, pdf_hash)
SELECT 'file', file_id, content_hash FROM registry.files;
"""


async def write_history(
    admin: "asyncpg.Connection[Any]", generations: int, within: timedelta = LONG
) -> None:
    """Live through so many generations, by the superuser."""
    await admin.execute(PAST, generations, within, timeout=600)
    for part in (CACHE, QUOTA, WORKER, REGISTRY):
        await admin.execute(part, timeout=1200)
    await admin.execute("VACUUM ANALYZE", timeout=600)
