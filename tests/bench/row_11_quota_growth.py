"""BENCH row 11, Quota's part: what Admit costs with a million ledger rows and 50,000 window rows.

At most 1.3 times what it costs in an empty database, one at a time and in batches; the calls of
the two databases alternate. Run it with `python -m tests.bench.row_11_quota_growth`.
"""

import asyncio
import statistics
import sys
import time
from uuid import uuid4

import asyncpg

from services.quota.config import Config
from services.quota.domain import AdmitRequest
from services.quota.store import QuotaStore
from services.runtime.database import Database, open_database
from tests.bench.house import database, postgres

BAR = 1.3
ROUNDS = 3
CALLS = {1: 400, 256: 20}
USERS = 10_000
GENERATIONS = [uuid4() for _ in range(100)]

# A hundred charges for each of ten thousand users; their sums are the balances.
FILL = f"""
INSERT INTO quota.accounts (user_id, balance_units, period_ends_at)
SELECT 'user-' || n, 900, now() + interval '20 days' FROM generate_series(1, {USERS}) AS n;

INSERT INTO quota.ledger_entries (user_id, kind, units, reason)
SELECT 'user-' || n, 'grant', 1000, '' FROM generate_series(1, {USERS}) AS n;

WITH charge AS (
    INSERT INTO quota.explain_requests
        (request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale,
         effective_mode, quota_units, status, created_at)
    SELECT gen_random_uuid(), 'user-' || (n % {USERS} + 1), 'explain_page', 'cached',
           md5((n % 10000)::text)::uuid, repeat('a', 64), 1, 'en', 'text_only', 1, 'charged',
           now() - interval '1 second' * n
    FROM generate_series(1, 1000000) AS n
    RETURNING request_id, user_id
)
INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)
SELECT user_id, request_id, 'charge', -1, 'cached' FROM charge;

INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at, sequence)
SELECT 'user-' || (n % {USERS} + 1), 'explain_page',
       now() - interval '20 hours' + interval '1 second' * n, n / {USERS} + 1
FROM generate_series(1, 50000) AS n;
"""


async def main() -> int:
    missed = 0
    async with postgres() as server:
        _, empty_url = await database(server, "empty")
        full_admin, full_url = await database(server, "full")
        await fill(full_admin)
        async with (
            open_database(empty_url, application_name="bench") as empty,
            open_database(full_url, application_name="bench") as full,
        ):
            for batch in CALLS:
                missed += await compare(empty, full, batch)
    return missed


async def fill(admin_url: str) -> None:
    connection = await asyncpg.connect(admin_url)
    await connection.execute(FILL)
    await connection.execute("VACUUM ANALYZE")
    await connection.execute("CHECKPOINT")
    await connection.close()


async def compare(empty: Database, full: Database, batch: int) -> int:
    rules = Config.model_validate({**REQUIRED, **GENEROUS}).rules()
    stores = {"empty": QuotaStore(empty, rules), "full": QuotaStore(full, rules)}
    ratios, seconds = [], {"empty": list[float](), "full": list[float]()}
    for round_ in range(ROUNDS + 1):
        taken = {"empty": list[float](), "full": list[float]()}
        for number in range(CALLS[batch]):
            for name, store in stores.items():
                requests = [hit(number * batch + place) for place in range(batch)]
                started = time.perf_counter()
                await store.admit_many(requests)
                taken[name].append(time.perf_counter() - started)
        if round_:  # the first one warms
            ratios.append(statistics.median(taken["full"]) / statistics.median(taken["empty"]))
            for name, times in taken.items():
                seconds[name] += times
    ratio = statistics.median(ratios)
    passed = ratio <= BAR
    print(
        f"row 11 (Quota): batch of {batch:>3}:"
        f" empty p50 {_ms(seconds['empty'], 50)} p95 {_ms(seconds['empty'], 95)},"
        f" full p50 {_ms(seconds['full'], 50)} p95 {_ms(seconds['full'], 95)}:"
        f" {ratio:.2f} x (bar {BAR} x) {'ok' if passed else 'MISSED'}"
    )
    return int(not passed)


REQUIRED = {"database_url": "postgresql://unused", "verify_key_file": "unused"}
GENEROUS = {"units_per_period": 10**9, "hard_limit": 10**6, "daily_limit": 10**7}


def hit(number: int) -> AdmitRequest:
    user = f"user-{number * 7919 % USERS + 1}"
    generation = GENERATIONS[number % len(GENERATIONS)]
    return AdmitRequest(
        uuid4(), user, "explain_page", "cached", generation, "a" * 64, 1, "en", "text_only", True
    )


def _ms(times: list[float], percent: int) -> str:
    return f"{statistics.quantiles(times, n=100)[percent - 1] * 1000:.2f} ms"


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
