"""Statements find their rows by the index made for them, however much history there is."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import pytest

from services.cache import (
    attach_store,
    generation_store,
    job_store,
    queue_store,
    request_store,
    retirement_store,
)
from services.cache.config import Config
from services.cache.job_domain import Lease, Progress
from services.cache.job_store import JobStore
from services.runtime.database import open_database
from tests.conftest import TEMPLATE

# 1,000,000 takes minutes; the plans are the same.
ROWS = int(os.environ.get("GLOSSA_PLAN_ROWS", "100000"))
TABLES = {"generations", "requests"}

# Mostly history, some failures, and a queue: leased, waiting, and waiting for another attempt.
# Half of the results are older versions that were retired.
SEED_GENERATIONS = """
INSERT INTO cache.generations (
    generation_id, kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope,
    images_count, context_fingerprint, status, stage, result, error_reason, failed_for_good,
    created_at, completed_at, retired_at, retired_reason, owner, lane, turn, run_after,
    attempts, leased_by, leased_until, deadline_at, started_at
)
SELECT md5('generation' || n)::uuid, 'page_explanation',
    encode(sha256(('document' || n / 50)::bytea), 'hex'), 1 + n % 50, 'v' || n % 2, 'en',
    'text_only', 'm', 'shared', 0, CASE WHEN kind = 'ready' THEN 'fingerprint' || n ELSE '' END,
    kind, CASE kind WHEN 'generating' THEN 'queued' ELSE kind END,
    CASE kind WHEN 'ready' THEN ''::bytea END,
    CASE kind WHEN 'failed' THEN 'MODEL_DOWN' END, kind = 'failed' AND n % 3 = 0,
    at, CASE WHEN kind <> 'generating' THEN at END,
    CASE WHEN kind = 'ready' AND n % 2 = 0 THEN at END,
    CASE WHEN kind = 'ready' AND n % 2 = 0 THEN 'INVALIDATED' END,
    'owner' || n % 100, n / 20 % 2,
    CASE WHEN kind = 'ready' OR n % 40 = 7 THEN NULL ELSE n / 2000 END, at,
    CASE WHEN kind = 'generating' AND n % 40 = 3 THEN 1 ELSE 0 END,
    CASE WHEN kind = 'generating' AND n % 40 = 3 THEN 'worker-1' END,
    CASE WHEN kind = 'generating' AND n % 40 = 3 THEN now() + interval '30 seconds' END,
    CASE WHEN kind = 'generating' AND n % 40 = 3 THEN now() + interval '75 seconds' END, at
FROM (
    SELECT n, now() - interval '25 days' * n / $1 AS at,
           CASE WHEN n % 10 = 9 THEN 'failed' WHEN n < $1 / 50 THEN 'generating' ELSE 'ready' END
               AS kind
    FROM generate_series(0, $1 - 1) AS n
) AS made
"""

SEED_REQUESTS = """
INSERT INTO cache.requests (
    request_id, user_id, pdf_hash, page, locale, state, nonce, held_until, outcome, generation_id,
    units, created_at, updated_at
)
SELECT md5('request' || n)::uuid, 'user' || n % 1000, 'x', 1, 'en',
    CASE WHEN n % 1000 = 500 THEN 'intent'
         WHEN status = 'generating' THEN 'waiting'
         WHEN status = 'failed' THEN 'failed' ELSE 'served' END,
    gen_random_uuid(), now(), 'generated', generation_id, 1, at, at
FROM (
    SELECT n, now() - interval '25 days' * n / $1 AS at, generation_id, status
    FROM generate_series(0, $1 - 1) AS n
    INNER JOIN cache.generations ON generation_id = md5('generation' || n)::uuid
) AS made
"""

SEED_OUTBOX = """
INSERT INTO cache.outbox (request_id, user_id, reason)
SELECT md5('request' || n)::uuid, 'user', 'request_aborted' FROM generate_series(1, 20) AS n
"""

A_GENERATION = "md5('generation1234')::uuid"
A_HASH = "encode(sha256('document24'::bytea), 'hex')"
A_KEY = f"'page_explanation', {A_HASH}, 35, 'v0', 'en', 'text_only', 'm', 'shared'"
LEASES = f"ARRAY[{A_GENERATION}, md5('generation5')::uuid], ARRAY[1, 1]"
DEADLINE = "'60 s', '25 s', '15 s', '300 s'"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A statement, what it is called with, and the indexes made for it."""

    statement: str
    values: str
    indexes: frozenset[str]


def case(statement: str, values: str, *indexes: str) -> Case:
    return Case(statement=statement, values=values, indexes=frozenset(indexes))


WAITING_SINCE = "generation_waiting_since_idx"
PRIMARY = "generations_pkey"
CASES = {
    "FIND_LIVE": case(generation_store.FIND_LIVE, A_KEY, "generation_one_live_idx"),
    "FIND_REMEMBERED_FAILURE": case(
        generation_store.FIND_REMEMBERED_FAILURE,
        f"{A_KEY}, '10 min'",
        "generation_failed_for_good_idx",
    ),
    "FIND_STALE": case(
        generation_store.FIND_STALE,
        f"'page_explanation', {A_HASH}, 35, 'en', 'shared'",
        "generation_one_live_idx",
        "generation_retired_pages_idx",
    ),
    "ADOPT_TWIN": case(
        generation_store.ADOPT_TWIN, f"{A_KEY}, 'fingerprint99'", "generation_fingerprint_idx"
    ),
    "READ_REQUESTS": case(
        request_store.READ_REQUESTS,
        "ARRAY[md5('request1')::uuid, md5('request2')::uuid]",
        "requests_pkey",
    ),
    "INSERT_GENERATION": case(
        attach_store.INSERT_GENERATION,
        f"{A_KEY}, 0, '', 'owner1', 0, gen_random_uuid(), NULL",
        "generation_owner_turns_idx",
        "generation_turns_idx",
    ),
    "ABORT_STALE_INTENTS": case(
        request_store.ABORT_STALE_INTENTS, "'20 days'", "requests_open_intents_idx"
    ),
    "LEASE_JOBS": case(
        job_store.LEASE_JOBS,
        f"'w', 10, '30 s', 3, {DEADLINE}, 0, 0",
        "generation_turns_idx",
        PRIMARY,
    ),
    "RENEW_LEASES": case(
        job_store.RENEW_LEASES,
        f"{LEASES}, ARRAY['reading', NULL], ARRAY[0, 0], ARRAY[0, 0], ARRAY[1, 1], '30 s',"
        f" {DEADLINE}",
        PRIMARY,
    ),
    "COMPLETE_JOBS": case(
        job_store.COMPLETE_JOBS, f"{LEASES}, ARRAY['', '']::bytea[], ARRAY[false, false]", PRIMARY
    ),
    "RELEASE_JOBS": case(job_store.RELEASE_JOBS, LEASES, PRIMARY),
    "SERVE_WAITERS": case(
        job_store.SERVE_WAITERS, f"ARRAY[{A_GENERATION}]", "requests_by_generation_idx"
    ),
    "FAIL_WAITERS": case(job_store.FAIL_WAITERS, A_GENERATION, "requests_by_generation_idx"),
    "FIND_SPENT": case(queue_store.FIND_SPENT, "3", WAITING_SINCE),
    "FIND_OVERDUE": case(queue_store.FIND_OVERDUE, "'1 hour'", WAITING_SINCE),
    "READMIT_DUE": case(
        queue_store.READMIT_DUE, "", "generation_backoff_idx", "generation_turns_idx"
    ),
    "AGE_WAITING": case(queue_store.AGE_WAITING, "'5 min'", WAITING_SINCE, "generation_turns_idx"),
    "READ_LANES": case(queue_store.READ_LANES, "1000", WAITING_SINCE),
    "LIST_RETIRED": case(retirement_store.LIST_RETIRED, "'30 s'", "generation_retired_idx"),
    "DELETE_ENDED": case(
        retirement_store.DELETE_ENDED,
        "'20 days'",
        "generation_failed_idx",
        "generation_retired_idx",
        PRIMARY,
    ),
    "DELETE_SETTLED_REQUESTS": case(
        retirement_store.DELETE_SETTLED_REQUESTS,
        "'20 days'",
        "requests_settled_idx",
        "requests_pkey",
    ),
}


@pytest.fixture(scope="module")
async def history(template: str) -> AsyncIterator["asyncpg.Connection[Any]"]:
    """A database with a long past and a queue, as its statistics see it."""
    name = "test_history"
    connection = await asyncpg.connect(template)
    await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
    seeded = await asyncpg.connect(template.rpartition("/")[0] + f"/{name}")
    try:
        await seeded.execute(SEED_GENERATIONS, ROWS, timeout=600)
        await seeded.execute(SEED_REQUESTS, ROWS, timeout=600)
        await seeded.execute(SEED_OUTBOX)
        await seeded.execute("VACUUM ANALYZE", timeout=600)
        yield seeded
    finally:
        await seeded.close()
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        await connection.close()


# Drivers start with plans made for the values and may go over to one made for any values.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("plans_for", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", CASES)
async def test_a_statement_uses_its_index(
    history: "asyncpg.Connection[Any]", name: str, plans_for: str
) -> None:
    nodes = await plan(history, CASES[name], plans_for)

    scanned = {node["Relation Name"] for node in nodes if node["Node Type"] == "Seq Scan"}
    used = {node["Index Name"] for node in nodes if "Index Name" in node}
    assert scanned & TABLES == set(), f"{name} reads the whole table"
    assert CASES[name].indexes - used == set(), f"{name} uses {used}"


async def plan(
    connection: "asyncpg.Connection[Any]", wanted: Case, plans_for: str
) -> list[dict[str, Any]]:
    """Every node of the plan that is chosen for these values, or for any."""
    await connection.execute(f"SET plan_cache_mode = {plans_for}")
    await connection.execute(f"PREPARE planned AS {wanted.statement}")
    try:
        call = f"planned({wanted.values})" if wanted.values else "planned"
        found = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE {call}")
    finally:
        await connection.execute("DEALLOCATE planned")
    return list(nodes_of(json.loads(found)[0]["Plan"]))


def nodes_of(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from nodes_of(child)


JOBS = 2_000
HEARTBEATS = 10
COUNT_UPDATES = """
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
WHERE schemaname = 'cache' AND relname = 'generations'
"""
SEED_QUEUE = """
INSERT INTO cache.generations (
    kind, pdf_hash, page, prompt_version, locale, effective_mode, model, scope, images_count, owner
)
SELECT 'page_explanation', encode(sha256(n::text::bytea), 'hex'), 1, 'v1', 'en', 'text_only', 'm',
    'shared', 0, 'owner' || n % 10
FROM generate_series(1, $1::integer) AS n
"""


async def lease_everything(store: JobStore) -> list[Lease]:
    leases: list[Lease] = []
    while jobs := await store.lease_jobs("worker-1", 100):
        leases += [job.lease for job in jobs]
    return leases


async def test_leases_and_heartbeats_rewrite_no_index(
    admin_url: str, databases: Mapping[str, str]
) -> None:
    admin = await asyncpg.connect(admin_url)
    try:
        await admin.execute(SEED_QUEUE, JOBS)
        async with store_of(databases) as store:
            leases = await lease_everything(store)
        leased = await updates(admin, at_least=JOBS)
        async with store_of(databases) as store:
            for beat in range(HEARTBEATS):
                for start in range(0, JOBS, 100):
                    renewals = [
                        Progress(lease=lease, stage="explaining", done=beat, total=HEARTBEATS)
                        for lease in leases[start : start + 100]
                    ]
                    kept, _ = await store.renew_leases(renewals)
                    assert len(kept) == 100
        beaten = await updates(admin, at_least=leased.all + JOBS * HEARTBEATS) - leased
    finally:
        await admin.close()
    assert leased.hot >= 0.9 * leased.all
    assert beaten.hot >= 0.9 * beaten.all


@dataclass(frozen=True, kw_only=True)
class Updates:
    """How many rows were updated, and how many of them without touching an index."""

    all: int
    hot: int

    def __sub__(self, other: "Updates") -> "Updates":
        return Updates(all=self.all - other.all, hot=self.hot - other.hot)


async def updates(admin: "asyncpg.Connection[Any]", *, at_least: int) -> Updates:
    """What the statistics say once they have heard of so many."""
    while True:
        row = await admin.fetchrow(COUNT_UPDATES)
        assert row is not None
        if row["n_tup_upd"] >= at_least:
            return Updates(all=row["n_tup_upd"], hot=row["n_tup_hot_upd"])
        await asyncio.sleep(0.02)


@asynccontextmanager
async def store_of(databases: Mapping[str, str]) -> AsyncIterator[JobStore]:
    """Its connections end with the block, and then the statistics know what they did."""
    async with open_database(databases["cache"], application_name="test") as database:
        yield JobStore(database, Config.model_construct().clocks())
