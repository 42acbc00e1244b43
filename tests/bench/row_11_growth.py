"""Row 11: what a hit and a lease take with 10³, 10⁵ and 10⁶ generations and ledger rows.

Bar: at most 1.3 times what they take at 10³. Each size has a Postgres and services of its own, and
they take turns. Results are not kept in memory here, so that every hit is looked up in the table.
`GLOSSA_BENCH_ROWS=10000000` adds a size.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import asyncpg

from tests.bench.hits import EXPLAIN_PAGE, Hits, load
from tests.bench.no_op_worker import NoOpWorker, enqueue
from tests.bench.report import Figure, median_ratio, standalone
from tests.bench.stand import UNLIMITED, Stand, open_stand

SMALLEST, SIZES = 10**3, (10**5, 10**6)
ROUNDS, REQUESTS, JOBS, USERS, BAR = 5, 300, 1_000, 100, 1.3

GENERATIONS = """
INSERT INTO cache.generations (
    kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count,
    context_fingerprint, status, stage, result, error_reason, created_at, completed_at, owner, turn
)
SELECT 'page_explanation', encode(sha256(('document' || n / 50)::bytea), 'hex'), 1 + n % 50, 'old',
       'en', 'text_only', 'none', 'shared', 0, 'fingerprint' || n, kind, kind,
       CASE kind WHEN 'ready' THEN decode(repeat('00', 400), 'hex') END,
       CASE kind WHEN 'failed' THEN 'MODEL_DOWN' END, at, at, 'owner' || n % 100, NULL
FROM (
    SELECT n, now() - interval '25 days' * n / $1 AS at,
           CASE WHEN n % 20 = 9 THEN 'failed' ELSE 'ready' END AS kind
    FROM generate_series(1, $1) AS n
) AS made
"""
ACCOUNTS = """
INSERT INTO quota.accounts (user_id, balance_units, period_ends_at)
SELECT 'old-' || n, 0, now() + interval '20 days' FROM generate_series(0, $1 / 100) AS n
"""
# As many charges as grants, so that the sums are right.
LEDGER = """
WITH charge AS (
    INSERT INTO quota.explain_requests
        (request_id, user_id, endpoint, outcome, generation_id, pdf_hash, page, locale,
         effective_mode, quota_units, status, created_at)
    SELECT gen_random_uuid(), 'old-' || n / 100, 'explain_page', 'cached',
           md5((n % 10000)::text)::uuid, repeat('a', 64), 1, 'en', 'text_only', 1, 'charged',
           now() - interval '25 days' * n / $1
    FROM generate_series(0, $1 - 1) AS n
    RETURNING request_id, user_id
)
INSERT INTO quota.ledger_entries (user_id, request_id, kind, units, reason)
SELECT user_id, request_id, 'charge', -1, 'cached' FROM charge
"""
WINDOWS = """
INSERT INTO quota.ai_request_log (user_id, endpoint, admitted_at, sequence)
SELECT 'old-' || n / 100, 'explain_page', now() - interval '20 hours' + interval '1 second' * n,
       n % 100 + 1
FROM generate_series(0, least($1, 50000) - 1) AS n
"""


class Grown:
    """Services over tables with so many rows of history."""

    def __init__(self, stand: Stand, folder: Path, rows: int) -> None:
        self._stand = stand
        self._hits = Hits(stand, folder)
        self.rows = rows
        self.hit_seconds: list[float] = []
        self.lease_seconds: list[float] = []

    async def open(self) -> None:
        self._admin = await asyncpg.connect(self._stand.admin_url)
        self._stand.stack.push_async_callback(self._admin.close)
        for statement in (GENERATIONS, ACCOUNTS, LEDGER, WINDOWS):
            await self._admin.execute(statement, self.rows)
        await self._admin.execute("VACUUM ANALYZE")
        await self._admin.execute("CHECKPOINT")
        services = await self._stand.start_all({"quota": UNLIMITED, "cache": {"memory_bytes": 0}})
        await self._hits.open(USERS)
        await services["worker"].stop()  # or it would take the jobs of the one that does nothing
        self._worker = NoOpWorker(await self._stand.channel("cache"), self._stand.bearer("worker"))

    async def measure(self) -> None:
        asked = self._hits.write_requests(REQUESTS, own_ids=True, users=USERS)
        done = await load(
            self._stand.addresses["cache"],
            EXPLAIN_PAGE,
            asked,
            token=self._hits.token,
            in_flight=1,
            connections=1,
        )
        self.hit_seconds.append(done.p50)
        await enqueue(self._admin, JOBS)
        began = time.perf_counter()
        await self._worker.drain(JOBS)
        self.lease_seconds.append((time.perf_counter() - began) / JOBS)


MEASURED: dict[str, Callable[[Grown], list[float]]] = {
    "charged hit, p50": lambda grown: grown.hit_seconds,
    "lease and complete a job": lambda grown: grown.lease_seconds,
}


async def run() -> list[Figure]:
    more = os.environ.get("GLOSSA_BENCH_ROWS")
    sizes = (SMALLEST, *SIZES, *((int(more),) if more else ()))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        grown = []
        for rows in sizes:
            stand = await stack.enter_async_context(open_stand(shared_buffers="512MB"))
            grown.append(Grown(stand, folder, rows))
            await grown[-1].open()
        for round_ in range(ROUNDS + 1):
            for one in grown:
                await one.measure()
            if round_ == 0:  # it warms
                for one in grown:
                    one.hit_seconds.clear()
                    one.lease_seconds.clear()
    small, *larger = grown
    return [
        Figure(
            row=11,
            what=f"{what} with {one.rows:,} generations and ledger rows",
            ours=f"{1e6 * statistics.median(ours(one)):,.0f} µs",
            reference=f"with {small.rows:,}: {1e6 * statistics.median(ours(small)):,.0f} µs",
            value=median_ratio(ours(one), ours(small)),
            unit="x",
            bar=BAR,
            at_least=False,
        )
        for one in larger
        for what, ours in MEASURED.items()
    ]


if __name__ == "__main__":
    sys.exit(standalone(run))
